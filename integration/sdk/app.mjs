// An application that starts jobs with a real SDK. It reads one order a line
// from standard input, makes the call, and writes what came of it as one line.
//
//   node app.mjs <sdk>
//
// An order is {"call", "gateway", "job": {"key", "prompt", "source"}, "timeout",
// "maxRetries"}, the call one of those that <sdk>.mjs exports. These files show
// how a key is set with each SDK, and docs/clients.md quotes them. Each also exports
// heard: where an application finds what the gateway says about an error.
import { createInterface } from 'node:readline';

const sdk = await import(`./${process.argv[2]}.mjs`);

for await (const line of createInterface({ input: process.stdin })) {
  const { call, ...order } = JSON.parse(line);
  let result;
  try {
    result = { id: await sdk[call]({ apiKey: 'test-key', ...order }) };
  } catch (error) {
    const { status, code, header } = sdk.heard(error);
    result = {
      error: error.constructor.name,
      message: error.message,
      status,
      code: code ?? header('idempotency-error'),
      shouldRetry: header('x-should-retry'),
    };
  }
  process.stdout.write(`${JSON.stringify(result)}\n`);
}
