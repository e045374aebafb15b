import Replicate from 'replicate';

export async function prediction({ gateway, apiKey, job, timeout }) {
  const replicate = new Replicate({
    auth: apiKey,
    baseUrl: `${gateway}/v1`,
    fetch: (url, { headers, ...request }) => {
      const key = url.pathname.endsWith('/predictions') ? { 'Idempotency-Key': job.key } : {};
      return fetch(url, { ...request, headers: { ...headers, ...key } });
    },
  });

  const prediction = await replicate.predictions.create({
    model: 'acme/video',
    input: { prompt: job.prompt, image: job.source },
    signal: AbortSignal.timeout(timeout),
  });
  return prediction.id;
}

// With a file, which the SDK uploads first.
export const predictionOfFile = ({ job, ...order }) =>
  prediction({ ...order, job: { ...job, source: new Blob([job.source]) } });

export const heard = (error) => ({
  status: error.response?.status,
  header: (name) => error.response?.headers.get(name),
});
