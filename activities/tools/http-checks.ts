import { parseAllowEntry } from '../../shared/process/address-guard.js';
import { type DeclarationProblem, shortProblems } from './declaration.js';
import { policyProblems } from './effect-policy.js';
import type { HttpToolDeclaration } from './http-format.js';
import {
  isWholeUrlTemplate,
  KEY_PLACEHOLDER,
  placeholdersInBody,
  placeholdersOf,
  urlTemplateProblem,
} from './http-template.js';
import { fitsOf, inputSchemaProblems, TOOL_NAME } from './input-schema.js';

const SECRET_OR_ENV = /\$\{(?!secret:[A-Za-z_][A-Za-z0-9_]*\})/;

/** What the schema of the format cannot see: names that must agree, and templates that cannot work. */
export function httpToolProblems(name: string, declared: HttpToolDeclaration): DeclarationProblem[] {
  const { probe } = declared;
  const problems = [
    ...nameProblems(name),
    ...inputSchemaProblems(declared.input).map((problem) => at(['input'], problem.message)),
    ...outputProblems(declared),
    ...policyProblems(declared, { hasProbe: probe !== undefined }),
    ...shortProblems(declared.short, declared.timeoutSeconds),
    ...placeProblems(declared, [], declared),
    ...(probe === undefined ? [] : placeProblems(probe, ['probe'], declared)),
    ...bodyProblems(declared),
    ...allowProblems(declared),
    ...keyProblems(declared),
  ];
  return problems;
}

function at(path: readonly (string | number)[], message: string): DeclarationProblem {
  return { path, message };
}

function nameProblems(name: string): DeclarationProblem[] {
  return TOOL_NAME.test(name)
    ? []
    : [at([], `"${name}" is no tool name — use 1 to 64 letters, digits, _ or -`)];
}

function outputProblems(declared: HttpToolDeclaration): DeclarationProblem[] {
  if (declared.output === undefined) return [];
  if (declared.expects === 'any')
    return [at(['output'], '`output` needs `expects: json` — remove one of them')];
  const compiled = fitsOf(declared.output);
  return typeof compiled === 'string' ? [at(['output'], compiled)] : [];
}

function placeProblems(
  place: Pick<HttpToolDeclaration, 'url' | 'parameters' | 'headers'>,
  under: readonly string[],
  declared: HttpToolDeclaration,
): DeclarationProblem[] {
  const urlProblem = urlTemplateProblem(place.url);
  const required = requiredArguments(declared);
  const inPath = placeholdersOf(place.url.split('?', 1)[0] ?? '');
  const inHeaders = Object.entries(place.headers);
  return [
    ...(urlProblem === null ? [] : [at([...under, 'url'], urlProblem)]),
    ...unknownArguments(placeholdersOf(place.url), declared).map((message) => at([...under, 'url'], message)),
    ...inPath
      .filter((name) => name !== KEY_PLACEHOLDER && !required.includes(name))
      .map((name) =>
        at([...under, 'url'], `{${name}} stands in the path but is optional — list it in input.required`),
      ),
    ...Object.entries(place.parameters).flatMap(([member, template]) =>
      unknownArguments(placeholdersOf(template), declared).map((message) =>
        at([...under, 'parameters', member], message),
      ),
    ),
    ...inHeaders
      .filter(([, template]) => SECRET_OR_ENV.test(template))
      .map(([member]) => at([...under, 'headers', member], 'only ${secret:NAME} can be filled in here')),
    ...inHeaders
      .filter(([, template]) => placeholdersOf(template).some((name) => name !== KEY_PLACEHOLDER))
      .map(([member]) => at([...under, 'headers', member], 'a header holds no arguments — only {$key}')),
  ];
}

function bodyProblems(declared: HttpToolDeclaration): DeclarationProblem[] {
  if (declared.body === undefined) return [];
  if (declared.method === 'GET') return [at(['body'], 'a GET has no body — remove it or change the method')];
  if (declared.body === 'arguments') return [];
  return unknownArguments(placeholdersInBody(declared.body), declared).map((message) =>
    at(['body'], message),
  );
}

function allowProblems(declared: HttpToolDeclaration): DeclarationProblem[] {
  const problems = declared.allow.flatMap((entry, index) => {
    const parsed = parseAllowEntry(entry);
    return typeof parsed === 'string' ? [at(['allow', index], parsed)] : [];
  });
  if (isWholeUrlTemplate(declared.url) && declared.allow.length === 0) {
    problems.push(
      at(['url'], 'a URL that an argument gives whole needs `allow` — list the hosts it may reach'),
    );
  }
  return problems;
}

/** A target that is to honour or to be asked about our key must be sent it. */
function keyProblems(declared: HttpToolDeclaration): DeclarationProblem[] {
  if (declared.class !== 'keyed' && declared.class !== 'queryable') return [];
  const texts = [declared.url, ...Object.values(declared.parameters), ...Object.values(declared.headers)];
  const inBody = typeof declared.body === 'object' ? placeholdersInBody(declared.body) : [];
  const sendsKey =
    declared.keyHeader !== undefined ||
    [...texts.flatMap((text) => placeholdersOf(text)), ...inBody].includes(KEY_PLACEHOLDER);
  if (sendsKey) return [];
  const message = `class ${declared.class} needs the key to be sent — name a \`keyHeader\` or use {$key}`;
  return [at(['class'], message)];
}

function unknownArguments(names: readonly string[], declared: HttpToolDeclaration): string[] {
  const properties = declared.input['properties'];
  const known = typeof properties === 'object' && properties !== null ? Object.keys(properties) : [];
  return names
    .filter((name) => name !== KEY_PLACEHOLDER && !known.includes(name))
    .map((name) => `{${name}} is no argument of the tool — add it to input.properties or correct the name`);
}

function requiredArguments(declared: HttpToolDeclaration): readonly unknown[] {
  const required = declared.input['required'];
  return Array.isArray(required) ? (required as readonly unknown[]) : [];
}
