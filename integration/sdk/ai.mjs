import { createGoogle } from '@ai-sdk/google';
import { experimental_startVideo as startVideo } from 'ai';

export async function video({ gateway, apiKey, job, timeout, maxRetries }) {
  const google = createGoogle({ baseURL: `${gateway}/v1beta`, apiKey });

  const { operation } = await startVideo({
    model: google.video('veo-3.1-generate-preview'),
    prompt: job.prompt,
    headers: { 'Idempotency-Key': job.key },
    abortSignal: AbortSignal.timeout(timeout),
    maxRetries,
  });
  return operation.operationName;
}

// The key that the SDK makes by itself.
export async function videoByItself({ gateway, apiKey, job }) {
  const google = createGoogle({ baseURL: `${gateway}/v1beta`, apiKey });
  const { operation } = await startVideo({ model: google.video('veo-3.1-generate-preview'), prompt: job.prompt });
  return operation.operationName;
}

export const heard = (error) => {
  const last = error.lastError ?? error; // a RetryError has the last one
  return { status: last.statusCode, header: (name) => last.responseHeaders?.[name] };
};
