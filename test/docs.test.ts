import { readdir, readFile } from 'node:fs/promises';
import { describe, expect, test } from 'vitest';
import { buildOpenApi } from '../api/openapi.js';
import { ROUTES } from '../api/routes/index.js';
import { ERRORS } from '../shared/domain/errors.js';
import type { ErrorCode } from '../shared/domain/errors.js';
import { EVENT_TYPES, eventsPage } from '../shared/domain/run-events.js';
import { STRICT_JSON_CODES } from '../shared/domain/strict-json.js';

const errorsPage = await readFile(new URL('../docs/errors.md', import.meta.url), 'utf8');

/** The cells of every table row whose first cell is a code, in the section under `heading`. */
function rowsUnder(heading: string): string[][] {
  const section = errorsPage.split(`\n## ${heading}\n`)[1]?.split('\n## ')[0] ?? '';
  return section
    .split('\n')
    .filter((line) => /^\| `/.test(line))
    .map((line) => line.split('|').map((cell) => cell.trim().replaceAll('`', '')))
    .map((cells) => cells.slice(1, -1));
}

describe('docs/errors.md', () => {
  test('lists every code with its status and its retry, and no other', () => {
    const written = rowsUnder('Codes').map(([code, http, , , retry]) => [code, Number(http), retry]);
    const known = Object.entries(ERRORS).map(([code, { http, retry }]) => [code, http, retry]);
    expect(written).toStrictEqual(known);
  });

  test('says of every code what it means and what to do', () => {
    for (const [code, , means, action] of rowsUnder('Codes')) {
      expect([code, (means ?? '').length > 20, (action ?? '').length > 10]).toStrictEqual([code, true, true]);
    }
  });

  test('lists every code of the strict reader that a text can meet, and no other', () => {
    const written = rowsUnder('What the strict reader refuses').map(([code]) => code);
    // `not_json_value` is of JavaScript values, `too_large` is answered as payload_too_large.
    const known = STRICT_JSON_CODES.filter((code) => code !== 'not_json_value' && code !== 'too_large');
    expect(written).toStrictEqual(known);
  });
});

describe('docs/openapi.json', () => {
  test('is what `npm run docs:write` writes', async () => {
    const written = await readFile(new URL('../docs/openapi.json', import.meta.url), 'utf8');
    expect(JSON.parse(written)).toStrictEqual(JSON.parse(JSON.stringify(buildOpenApi(ROUTES))));
  });

  test('names every code under some route, so that none is promised and never given', () => {
    const given = new Set<ErrorCode>(ROUTES.flatMap(({ spec }) => spec.errors));
    // Answers of the app itself, whatever the route; and one that commands with slow answers will give.
    const elsewhere: ErrorCode[] = [
      'internal',
      'route_not_found',
      'method_not_allowed',
      'idempotency_in_progress',
    ];
    const never = (Object.keys(ERRORS) as ErrorCode[]).filter(
      (code) => !given.has(code) && !elsewhere.includes(code),
    );
    expect(never).toStrictEqual([]);
  });

  test('no operation is named twice', () => {
    const names = ROUTES.map(({ spec }) => spec.operationId);
    expect(new Set(names).size).toBe(names.length);
  });
});

describe('docs/events.md', () => {
  test('is what `npm run docs:write` writes', async () => {
    expect(await readFile(new URL('../docs/events.md', import.meta.url), 'utf8')).toBe(eventsPage());
  });

  test('lists every type that the ledger’s functions write', async () => {
    const folder = new URL('../shared/ledger/migrations/', import.meta.url);
    const files = (await readdir(folder)).filter((name) => name.endsWith('.sql'));
    const texts = await Promise.all(files.map((name) => readFile(new URL(name, folder), 'utf8')));
    const written = texts.flatMap((text) =>
      [...text.matchAll(/append_event\(\s*\w+,\s*'([a-z_]+\.[a-z_]+)'/g)].map(([, type]) => type ?? ''),
    );
    expect(written.length).toBeGreaterThan(40);
    expect(written.filter((type) => !(type in EVENT_TYPES))).toStrictEqual([]);
  });
});
