import RunwayML from '@runwayml/sdk';

export async function video({ gateway, apiKey, job, timeout, maxRetries }) {
  const client = new RunwayML({ baseURL: gateway, apiKey, timeout, maxRetries });

  const task = await client.imageToVideo.create(
    { model: 'gen4_turbo', promptImage: job.source, promptText: job.prompt, ratio: '1280:720' },
    { headers: { 'Idempotency-Key': job.key } },
  );
  return task.id;
}

// The SDK's own option, which sends nothing.
export async function videoByOption({ gateway, apiKey, job }) {
  const client = new RunwayML({ baseURL: gateway, apiKey });
  const task = await client.imageToVideo.create(
    { model: 'gen4_turbo', promptImage: job.source, ratio: '1280:720' },
    { idempotencyKey: job.key },
  );
  return task.id;
}

export const heard = (error) => ({ status: error.status, header: (name) => error.headers?.get(name) });
