// Makes one call with the official openai SDK, as an application would, and
// prints what came of it as one line of JSON.
//
//   node openai.mjs '{"baseURL": …, "call": "responses" | "videos", "prompt": …,
//                     "key": …, "idempotencyKey": …, "maxRetries": …, "timeout": …}'
import OpenAI from 'openai';

const order = JSON.parse(process.argv[2]);
const client = new OpenAI({
  baseURL: order.baseURL,
  apiKey: 'test-key',
  maxRetries: order.maxRetries ?? 2,
  timeout: order.timeout ?? 30_000,
});

const prompt = order.prompt ?? 'a lighthouse';

// One key per job, as a header of the call.
const options = order.key === undefined ? {} : { headers: { 'Idempotency-Key': order.key } };
if (order.idempotencyKey !== undefined) {
  options.idempotencyKey = order.idempotencyKey;
}

const calls = {
  responses: () => client.responses.create({ model: 'gpt-5', input: prompt, background: true }, options),
  videos: () => client.videos.create({ model: 'sora-2', prompt }, options),
};

let result;
try {
  const job = await calls[order.call]();
  result = { id: job.id };
} catch (error) {
  result = { error: error.constructor.name, status: error.status, code: error.code, shouldRetry: error.headers?.get('x-should-retry') };
}
console.log(JSON.stringify(result));
