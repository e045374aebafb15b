import OpenAI from 'openai';

export async function responses({ gateway, apiKey, job, timeout, maxRetries }) {
  const client = new OpenAI({ baseURL: `${gateway}/v1`, apiKey, timeout, maxRetries });

  const response = await client.responses.create(
    { model: 'gpt-5', input: job.prompt, background: true },
    { headers: { 'Idempotency-Key': job.key } },
  );
  return response.id;
}

export async function videos({ gateway, apiKey, job, timeout, maxRetries }) {
  const client = new OpenAI({ baseURL: `${gateway}/v1`, apiKey, timeout, maxRetries });

  const video = await client.videos.create(
    { model: 'sora-2', prompt: job.prompt },
    { headers: { 'Idempotency-Key': job.key } },
  );
  return video.id;
}

// The SDK's own option, which sends nothing.
export async function responsesByOption({ gateway, apiKey, job }) {
  const client = new OpenAI({ baseURL: `${gateway}/v1`, apiKey });
  const response = await client.responses.create({ model: 'gpt-5', input: job.prompt }, { idempotencyKey: job.key });
  return response.id;
}

export async function videosByOption({ gateway, apiKey, job }) {
  const client = new OpenAI({ baseURL: `${gateway}/v1`, apiKey });
  const video = await client.videos.create({ model: 'sora-2', prompt: job.prompt }, { idempotencyKey: job.key });
  return video.id;
}

export const heard = (error) => ({
  status: error.status,
  code: error.code,
  header: (name) => error.headers?.get(name),
});
