import { ElevenLabsClient } from '@elevenlabs/elevenlabs-js';

export async function dubbing({ gateway, apiKey, job, timeout, maxRetries }) {
  const client = new ElevenLabsClient({ baseUrl: gateway, apiKey });

  const { dubbingId } = await client.dubbing.create(
    { sourceUrl: job.source, targetLang: 'de' },
    { headers: { 'Idempotency-Key': job.key }, timeoutInSeconds: timeout / 1000, maxRetries },
  );
  return dubbingId;
}

export const heard = (error) => ({
  status: error.statusCode,
  header: (name) => error.rawResponse?.headers.get(name),
});
