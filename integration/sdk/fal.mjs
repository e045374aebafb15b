import { createFalClient } from '@fal-ai/client';

export async function queue({ gateway, apiKey, job, timeout }) {
  const fal = createFalClient({
    credentials: apiKey,
    requestMiddleware: async (request) => ({
      ...request,
      url: request.url.replace('https://queue.fal.run', gateway),
    }),
  });

  const { request_id } = await fal.queue.submit('fal-ai/veo3', {
    input: { prompt: job.prompt },
    headers: { 'Idempotency-Key': job.key },
    abortSignal: AbortSignal.timeout(timeout),
  });
  return request_id;
}

export const heard = (error) => ({ status: error.status, code: error.body?.error?.code, header: () => undefined });
