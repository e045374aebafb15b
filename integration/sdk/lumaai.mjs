import LumaAI from 'lumaai';

export async function video({ gateway, apiKey, job, timeout, maxRetries }) {
  const client = new LumaAI({ baseURL: `${gateway}/dream-machine/v1`, authToken: apiKey, timeout, maxRetries });

  const generation = await client.generations.video.create(
    { model: 'ray-2', prompt: job.prompt },
    { headers: { 'Idempotency-Key': job.key } },
  );
  return generation.id;
}

// The SDK's own option, which sends nothing.
export async function videoByOption({ gateway, apiKey, job }) {
  const client = new LumaAI({ baseURL: `${gateway}/dream-machine/v1`, authToken: apiKey });
  const generation = await client.generations.video.create(
    { model: 'ray-2', prompt: job.prompt },
    { idempotencyKey: job.key },
  );
  return generation.id;
}

export const heard = (error) => ({ status: error.status, header: (name) => error.headers?.[name] });
