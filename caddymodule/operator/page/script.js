// The operator's page. Everything that comes from the API is put into the page
// as text: paths, job ids and answers are what callers and providers wrote.

const api = '/idempotency/records';
const pageSize = 100;
const most = 1000; // as many as the API gives at once
const element = (id) => document.getElementById(id);
const stateNames = { uncertain: 'unknown', in_progress: 'in progress', completed: 'completed' };

let limit = pageSize;
let shown = ''; // the records in the table, to leave it alone while nothing changes
let record = null; // the record that is open
let timer = 0;
let asked = 0; // listings so far: an answer that was overtaken is dropped

async function ask(path, options) {
	const response = await fetch(path, options);
	const text = await response.text();
	let answer = {};
	try {
		answer = JSON.parse(text, exactNumber);
	} catch {
		if (response.ok) throw new Error('the admin endpoint did not answer in JSON');
	}
	if (!response.ok) throw new Error(answer.error || `the admin endpoint answered with status ${response.status}`);
	return answer;
}

// exactNumber keeps a number as it is written: a 64-bit seed in a provider's
// answer must not be shown rounded.
function exactNumber(key, value, context) {
	if (typeof value !== 'number' || String(value) === context?.source || !JSON.rawJSON) return value;
	return JSON.rawJSON(context.source);
}

function decide(decision, order) {
	return ask(`${api}/${record.id}/${decision}`, {
		method: 'POST',
		headers: { 'Content-Type': 'application/json' },
		body: JSON.stringify({ ...order, attempt: record.attempt }),
	});
}

function create(name, text, className) {
	const e = document.createElement(name);
	e.textContent = text;
	if (className) e.className = className;
	return e;
}

// visible writes what would not be seen, or would move other text, as its code.
function visible(text) {
	return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

function moment(text) {
	const at = new Date(text);
	const minutes = Math.floor((Date.now() - at) / 60000);
	const age = minutes < 1 ? 'just now' : minutes < 120 ? `${minutes} min ago` : `${Math.floor(minutes / 60)} h ago`;
	const e = create('time', `${at.toISOString().slice(0, 19).replace('T', ' ')} UTC, ${age}`);
	e.dateTime = text;
	return e;
}

// list asks for the records, and again after a while: a listing makes the
// gateway look at every record, so the pause is ten times as long as it took.
async function list() {
	clearTimeout(timer);
	const mine = ++asked;
	const began = performance.now();
	const query = new URLSearchParams(new FormData(element('filter')));
	for (const [name, value] of [...query]) if (!value) query.delete(name);
	query.set('limit', limit);
	try {
		const listing = await ask(`${api}?${query}`);
		if (mine !== asked) return;
		showList(listing);
		element('failure').textContent = '';
	} catch (error) {
		if (mine !== asked) return;
		element('failure').textContent = error.message;
	}
	timer = setTimeout(again, Math.max(5000, 10 * (performance.now() - began)));
}

function again() {
	if (document.hidden) return; // visibilitychange goes on
	list();
}

function showList({ records, counts, next_cursor: next, unreadable = [], unreadable_count: unread = 0 }) {
	for (const state of Object.keys(stateNames)) {
		const count = element(`count-${state}`);
		if (count.textContent !== String(counts[state])) count.textContent = counts[state];
	}
	element('more').hidden = !next || limit >= most;
	const caption = [records.length === 1 ? '1 record, ' : `${records.length} records, `, 'the oldest first'];
	if (next) caption.push(limit >= most ? '; there are more: filter them' : '; there are more');
	if (unread) caption.push(`; ${unread} unreadable, open one by its id to forget it: ${unreadable.join(', ')}${unread > unreadable.length ? ', …' : ''}`);
	element('caption').textContent = caption.join('');

	const now = JSON.stringify(records);
	if (now === shown) return;
	shown = now;
	const focused = document.activeElement?.dataset?.id;
	element('rows').replaceChildren(...records.map(row));
	if (focused) document.querySelector(`#rows [data-id="${focused}"]`)?.focus();
}

function row(r) {
	const tr = document.createElement('tr');
	const cell = (content) => {
		const td = document.createElement('td');
		td.append(content);
		tr.append(td);
	};
	const open = create('button', r.id);
	open.type = 'button';
	open.dataset.id = r.id;
	open.addEventListener('click', () => { location.hash = r.id; });
	cell(open);
	cell(create('span', stateNames[r.state], `state-${r.state}`));
	cell(moment(r.created_at));
	cell(`${r.method} ${r.path}${r.namespace ? ` (${r.namespace})` : ''}`);
	cell([r.status, r.job_id].filter(Boolean).join(' '));
	cell(visible(r.label ?? ''));
	cell(r.error ?? '');
	return tr;
}

// showRecord opens the record that the address names after its #.
async function showRecord(reveal = false) {
	const id = location.hash.slice(1);
	const section = element('record');
	if (!/^[0-9a-v]{32}$/.test(id)) {
		section.hidden = true;
		record = null;
		return;
	}
	try {
		const answer = await ask(`${api}/${id}${reveal ? '?reveal=true' : ''}`);
		if (id !== location.hash.slice(1)) return;
		record = answer;
		element('failure').textContent = '';
	} catch (error) {
		section.hidden = true;
		record = null;
		element('failure').textContent = `Record ${id}: ${error.message}`;
		return;
	}
	element('record-title').textContent = `Record ${record.id}`;
	const fields = [];
	const field = (name, value) => fields.push(create('dt', name), create('dd', value));
	for (const [name, value] of Object.entries(record)) {
		switch (name) {
		case 'id': break;
		case 'unreadable': break;
		case 'state': field(name, stateNames[value] ?? value); break;
		case 'label': field(name, visible(value)); break;
		case 'decision': field(name, visible(`${value.what} at ${value.at}, from ${value.by ?? 'a local socket'}: ${value.reason}`)); break;
		case 'headers':
			for (const [header, values] of Object.entries(value)) for (const v of values) field('header', `${header}: ${v}`);
			break;
		case 'body': field(name, JSON.stringify(value)); break;
		default: field(name, String(value) || '–');
		}
	}
	element('fields').replaceChildren(...fields);
	element('reveal').hidden = reveal;
	element('decisions').hidden = record.state !== 'uncertain';
	element('forget').hidden = record.state === 'in_progress';
	section.hidden = false;
	if (!reveal) section.focus();
}

function confirmed(title, text, yes) {
	const dialog = element('confirm');
	element('confirm-title').textContent = title;
	element('confirm-text').textContent = text;
	element('confirm-yes').textContent = yes;
	dialog.returnValue = 'no';
	dialog.showModal();
	return new Promise((resolve) => {
		dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true });
	});
}

function base64(text) {
	let bytes = '';
	for (const byte of new TextEncoder().encode(text)) bytes += String.fromCharCode(byte);
	return btoa(bytes);
}

async function submitDecision(form, decision, order, question) {
	const { id } = record;
	if (!await confirmed(...question)) return;
	try {
		const { decision: done } = await decide(decision, order);
		form.reset();
		location.hash = '';
		element('done').textContent = `Record ${id} is ${done}.`;
		await list();
	} catch (error) {
		element('done').textContent = '';
		const message = `Record ${id}: ${error.message}`;
		await list();
		await showRecord();
		element('failure').textContent = message;
	}
}

element('complete').addEventListener('submit', (event) => {
	event.preventDefault();
	const form = event.target;
	const { status, type, body, reason } = Object.fromEntries(new FormData(form));
	if (type.includes('json') && body) {
		try {
			JSON.parse(body);
		} catch {
			element('failure').textContent = 'The body is not JSON.';
			form.elements.body.focus();
			return;
		}
	}
	const order = { status: Number(status), reason, headers: type && body ? { 'Content-Type': type } : {} };
	if (body) order.body_base64 = base64(body); // as it was typed
	else order.empty = true;
	submitDecision(form, 'complete', order, [
		'Complete this submit?',
		`Every repeat of ${record.method} ${record.path} gets status ${status} and ${body ? 'this' : 'an empty'} body from now on. That cannot be taken back.`,
		'Complete',
	]);
});

element('release').addEventListener('submit', (event) => {
	event.preventDefault();
	const form = event.target;
	submitDecision(form, 'release', { reason: form.elements.reason.value }, [
		'Release this submit?',
		`The next repeat of ${record.method} ${record.path} is sent to the provider. If the job exists after all, there will be two, and both are billed.`,
		'Release',
	]);
});

element('forget').addEventListener('submit', (event) => {
	event.preventDefault();
	const form = event.target;
	const request = record.path ? `${record.method} ${record.path}` : `record ${record.id}`;
	submitDecision(form, 'forget', { reason: form.elements.reason.value, state: record.state }, [
		'Forget this record?',
		`It is ${stateNames[record.state] ?? record.state}, and is removed. The next repeat of ${request} is sent to the provider. If there is a job, there will be two, and both are billed.`,
		'Forget',
	]);
});

element('filter').addEventListener('submit', (event) => {
	event.preventDefault();
	limit = pageSize;
	list();
});
element('filter').addEventListener('change', () => {
	limit = pageSize;
	list();
});
element('open').addEventListener('submit', (event) => {
	event.preventDefault();
	const id = event.target.elements.id.value;
	if (location.hash.slice(1) === id) showRecord();
	location.hash = id;
});
element('more').addEventListener('click', () => {
	limit = Math.min(limit + pageSize, most);
	list();
});
element('reveal').addEventListener('click', () => showRecord(true));
element('close').addEventListener('click', () => {
	const id = record?.id;
	location.hash = '';
	document.querySelector(`#rows [data-id="${id}"]`)?.focus();
});
addEventListener('hashchange', () => showRecord());
document.addEventListener('visibilitychange', again);

list();
showRecord();
