// Uses the operator's page in a real Chromium as an operator does, and fails
// at the first thing that is not as it should be.
//
//   node page.mjs '{"chromium": <path>, "gateway": <url>, "admin": <url>,
//                   "ids": [<unknown records, the oldest first>],
//                   "path": <path of the last>, "body": <an answer>,
//                   "screenshots": <directory>}'
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const order = JSON.parse(process.argv[2]);
const [first, second, third] = order.ids;
const browser = await chromium.launch({ executablePath: order.chromium, args: ['--no-sandbox'] });
const page = await browser.newPage({ viewport: { width: 1120, height: 720 } });
page.setDefaultTimeout(20_000);

// Whatever the page complains about, and whatever injected text would do.
const complaints = [];
page.on('console', (m) => { if (m.type() === 'error') complaints.push(m.text()); });
page.on('pageerror', (e) => complaints.push(String(e)));
page.on('dialog', (d) => { complaints.push(`dialog ${d.message()}`); d.dismiss(); });
page.on('request', (r) => { if (!r.url().startsWith(order.admin) && !r.url().startsWith('data:')) complaints.push(`request to ${r.url()}`); });

const rows = page.locator('#rows tr');
const count = (state) => page.locator(`#count-${state}`);
const text = (selector, wanted) => page.locator(selector).filter({ hasText: wanted }).waitFor();
const picture = (name) => page.screenshot({ path: join(order.screenshots, name) });
const focused = () => page.evaluate(() => document.activeElement.dataset.id ?? document.activeElement.id ?? '');

async function step(name, run) {
  try {
    await run();
  } catch (e) {
    await picture('failed.png');
    throw new Error(`${name}: ${e.message}\ncomplaints: ${complaints.join('\n')}`, { cause: e });
  }
}

await step('unknown submits come first, the oldest at the top', async () => {
  const response = await page.goto(`${order.admin}/idempotency/`);
  assert.match(response.headers()['content-security-policy'], /^default-src 'none'; script-src 'self';/);
  await count('uncertain').filter({ hasText: /^3$/ }).waitFor();
  assert.equal(await count('completed').textContent(), '1');
  assert.equal(await count('in_progress').textContent(), '0');
  assert.deepEqual(await rows.locator('button').allTextContents(), order.ids);
});

await step('text of callers and providers is only text', async () => {
  await text('#rows', order.path);
  await page.selectOption('#filter [name=state]', 'completed');
  await text('#rows', '<script>injected = 1</script>');
  assert.equal(await page.evaluate(() => globalThis.injected), undefined);
  assert.equal(await page.locator('#rows img, #rows script').count(), 0);
  await page.selectOption('#filter [name=state]', 'uncertain');
  await rows.nth(2).waitFor();
});

await step('every control has a name', async () => {
  const nameless = await page.evaluate(() => [...document.querySelectorAll('input, select, textarea, button')]
    .filter((e) => !(e.labels?.length || e.textContent.trim() || e.id === 'confirm-yes')).map((e) => e.outerHTML));
  assert.deepEqual(nameless, []);
});

await step('filter by path', async () => {
  await page.fill('#filter [name=path]', '/v2/*');
  await page.keyboard.press('Enter');
  await text('#caption', '1 record,');
  assert.deepEqual(await rows.locator('button').allTextContents(), [second]);
  await page.fill('#filter [name=path]', '/v*');
  await page.keyboard.press('Enter');
  await text('#caption', '2 records,');
  await picture('operator-list.png');
  await page.fill('#filter [name=older_than]', 'soon');
  await page.keyboard.press('Enter');
  await text('#failure', 'older_than');
  await page.fill('#filter [name=older_than]', '');
  await page.fill('#filter [name=path]', '');
  await page.keyboard.press('Enter');
  await rows.nth(2).waitFor();
  assert.equal(await page.locator('#failure').textContent(), '');
});

await step('light and dark', async () => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.emulateMedia({ colorScheme: 'dark' });
  const dark = await background();
  await page.emulateMedia({ colorScheme: 'light' });
  assert.notEqual(dark, await background());
});

await step('a record by keyboard, with its secrets only on request', async () => {
  await page.locator('#open input').focus();
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  assert.equal(await focused(), first, 'the first record comes after the forms');
  await page.keyboard.press('Enter');
  await text('#record-title', first);
  assert.equal(await focused(), 'record');
  await text('#fields', 'the connection to the provider broke');
  assert.doesNotMatch(await page.locator('#fields').textContent(), /film-1/);
  await page.keyboard.press('Tab');
  assert.equal(await focused(), 'reveal');
  await page.keyboard.press('Enter');
  await text('#fields', 'film-1');
  await page.locator('#close').focus();
  await page.keyboard.press('Enter');
  await page.locator('#record').waitFor({ state: 'hidden' });
  assert.equal(await focused(), first, 'the focus goes back to the row');
});

await step('complete, with confirmation', async () => {
  await page.locator(`[data-id="${second}"]`).click();
  await text('#record-title', second);
  await page.fill('#complete [name=body]', '{"id":');
  await page.fill('#complete [name=reason]', 'found in the console');
  await page.click('#complete button');
  await text('#failure', 'The body is not JSON.');
  await page.fill('#complete [name=body]', order.body);
  await page.click('#complete button');
  await page.locator('#confirm[open]').waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.value), 'no', 'Cancel has the focus');
  await page.keyboard.press('Escape');
  await page.locator('#confirm').waitFor({ state: 'hidden' });
  assert.equal(await count('uncertain').textContent(), '3');
  await page.click('#complete button');
  await page.locator('#confirm-yes').filter({ hasText: 'Complete' }).click();
  await text('#done', `Record ${second} is completed.`);
  await count('uncertain').filter({ hasText: /^2$/ }).waitFor();
  await page.locator('#record').waitFor({ state: 'hidden' });
});

await step('what it has completed is shown exactly', async () => {
  await page.fill('#open [name=id]', second);
  await page.keyboard.press('Enter');
  await text('#fields', 'job_77');
  await page.locator('#decisions').waitFor({ state: 'hidden' });
  await text('#fields', 'found in the console');
  await page.click('#reveal');
  await text('#fields', '12345678901234567890');
  await page.click('#close');
});

await step('release, by keyboard, with confirmation', async () => {
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.locator(`[data-id="${first}"]`).click();
  await text('#record-title', first);
  await page.focus('#release [name=reason]');
  await page.keyboard.type('not in the console');
  await page.keyboard.press('Enter');
  await page.locator('#confirm[open]').waitFor();
  await picture('operator-release.png');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await text('#done', `Record ${first} is released.`);
  await count('uncertain').filter({ hasText: /^1$/ }).waitFor();
  assert.deepEqual(await rows.locator('button').allTextContents(), [third]);
});

await step('live counters', async () => {
  const response = await fetch(`${order.gateway}/v1/videos`, {
    method: 'POST', headers: { 'Idempotency-Key': 'live', Authorization: 'Bearer caller' }, body: 'live',
  });
  assert.equal(response.status, 202);
  await count('completed').filter({ hasText: /^3$/ }).waitFor();
});

// Chromium writes each answer with an error status to the console.
const expected = () => complaints.splice(0).filter((c) => !/status of (400|404|409)/.test(c));
assert.deepEqual(expected(), []);

await step('another operator was faster', async () => {
  await page.locator(`[data-id="${third}"]`).click();
  await text('#record-title', third);
  await page.fill('#release [name=reason]', 'r');
  const response = await fetch(`${order.admin}/idempotency/records/${third}/release`, {
    method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{"reason":"the other operator"}',
  });
  assert.equal(response.status, 200);
  await page.click('#release button');
  await page.click('#confirm-yes');
  await text('#failure', `Record ${third}: there is no such record`);
  await count('uncertain').filter({ hasText: /^0$/ }).waitFor();
});

await step('forget, with a word that is typed and a confirmation', async () => {
  await page.selectOption('#filter [name=state]', 'completed');
  await page.fill('#filter [name=label]', 'team \u202ea*');
  await page.keyboard.press('Enter');
  await text('#caption', '1 record,');
  await text('#rows', 'team \\u{202e}a <b>');
  await rows.locator('button').click();
  await text('#record-title', 'Record');
  await page.locator('#decisions').waitFor({ state: 'hidden' });
  await page.fill('#forget [name=reason]', 'it was a failure');
  await page.click('#forget button');
  assert.equal(await page.locator('#confirm[open]').count(), 0, 'the word is missing');
  await page.fill('#forget [name=typed]', 'forget');
  await page.click('#forget button');
  await text('#confirm-text', 'It is completed');
  await page.click('#confirm-yes');
  await text('#done', 'is forgotten.');
  await count('completed').filter({ hasText: /^2$/ }).waitFor();
});

assert.deepEqual(expected(), []);
await browser.close();
