import { excerpt } from './json-rules.js';
import type { JsonObject, JsonValue } from './json.js';
import type { ModelResponsePart, RawToolCall } from './models.js';
import { canonicalJson, parseStrictJson } from './strict-json.js';

/** Largest arguments of one tool call, in UTF-8 bytes. */
export const ARGUMENTS_BYTES_MAX = 1_048_576;

/**
 * Why a tool call is answered with an error instead of being run.
 * `arguments_unstorable`: JSON that cannot be stored and digested faithfully (SPEC 3.1.1).
 */
export const TOOL_CALL_REFUSALS = [
  'too_many_calls',
  'unknown_tool',
  'arguments_not_json',
  'arguments_unstorable',
  'arguments_not_object',
  'arguments_invalid',
] as const;
export type ToolCallRefusal = (typeof TOOL_CALL_REFUSALS)[number];

interface CallSlot {
  /** Place among the response's tool calls, from 0; part of the effect's key. */
  readonly slot: number;
  /** Unique in the transcript, 1–64 characters of `A-Z a-z 0-9 _ -`, which every provider takes back. */
  readonly callId: string;
  /** In a form that every provider takes back; where the call is planned, exactly a tool's name. */
  readonly toolName: string;
  /** What the transcript keeps; `{}` where the model's text could not be read as an object. */
  readonly arguments: JsonObject;
  readonly providerMetadata?: JsonObject;
}

/** A call that may become an effect. */
export interface ReadyToolCall extends CallSlot {
  readonly kind: 'planned';
  /** RFC 8785 form of `arguments`: what is digested and approved. */
  readonly canonicalArguments: string;
}

/** A call that never becomes an effect. */
export interface RefusedToolCall extends CallSlot {
  readonly kind: 'refused';
  readonly code: ToolCallRefusal;
  /** For the model, as the result of its call: what was wrong and what to do. */
  readonly message: string;
}

/** A tool call of a model's response after every check. */
export type PlannedCall = ReadyToolCall | RefusedToolCall;

export interface ToolCallContext {
  /** The run's tools by exact name. */
  readonly tools: ReadonlyMap<string, { readonly inputSchema: JsonObject }>;
  /** What breaks the tool's schema, one short sentence each; empty when nothing does. */
  readonly validate: (toolName: string, value: JsonObject) => readonly string[];
  /** Names the response (for example turn and step); made-up call ids begin with it. */
  readonly callIdPrefix: string;
  /** Call ids that the transcript already holds. */
  readonly usedCallIds: ReadonlySet<string>;
  /** Calls of one response that may run; later ones are refused. */
  readonly callsMax: number;
}

/**
 * Gives every tool call of a response, in order, a slot, a unique call id and a verdict: planned, or
 * refused with a message for the model. Pure: the same response and context give the same calls, so a
 * replay finds the same slots. Never throws for anything a model can write.
 */
export function readToolCalls(parts: readonly ModelResponsePart[], context: ToolCallContext): PlannedCall[] {
  const usedCallIds = new Set(context.usedCallIds);
  const rawCalls = parts.filter((part) => part.type === 'raw_tool_call');
  return rawCalls.map((raw, slot) => {
    const callId = chooseCallId(raw.providerCallId, slot, usedCallIds, context.callIdPrefix);
    usedCallIds.add(callId);
    const known = context.tools.get(raw.toolName);
    const read = readArguments(raw.argumentsText, known?.inputSchema);
    const common = {
      slot,
      callId,
      toolName: known ? raw.toolName : replayableToolName(raw.toolName),
      arguments: read.ok ? read.value : {},
      ...(raw.providerMetadata ? { providerMetadata: raw.providerMetadata } : {}),
    };
    const refusal = refuse(raw, slot, read, context);
    if (refusal) return { kind: 'refused', ...common, ...refusal };
    return { kind: 'planned', ...common, canonicalArguments: canonicalJson(common.arguments) };
  });
}

type ReadArguments =
  | { readonly ok: true; readonly value: JsonObject }
  | { readonly ok: false; readonly code: ToolCallRefusal; readonly message: string };

function refuse(
  raw: RawToolCall,
  slot: number,
  read: ReadArguments,
  context: ToolCallContext,
): { readonly code: ToolCallRefusal; readonly message: string } | undefined {
  if (slot >= context.callsMax) {
    const message =
      `This was call ${slot + 1} of one answer; at most ${context.callsMax} run, so this one did not. ` +
      'Look at the results of the others, then call again what is still needed.';
    return { code: 'too_many_calls', message };
  }
  if (!context.tools.has(raw.toolName)) {
    return { code: 'unknown_tool', message: unknownToolMessage(raw.toolName, context.tools) };
  }
  if (!read.ok) return { code: read.code, message: read.message };
  const faults = context.validate(raw.toolName, read.value);
  if (faults.length === 0) return undefined;
  const message =
    `The arguments do not fit the schema of ${raw.toolName}, so it was not run: ${faults.join('; ')}. ` +
    'Call it again with arguments that fit.';
  return { code: 'arguments_invalid', message };
}

function readArguments(text: string, inputSchema: JsonObject | undefined): ReadArguments {
  // Some servers write nothing at all for a tool without parameters. Anywhere else nothing is a fault:
  // a tool with parameters must never run on arguments that the model did not write.
  if (text.trim() === '' && inputSchema && !hasProperties(inputSchema)) return { ok: true, value: {} };
  const parsed = parseStrictJson(text, { bytesMax: ARGUMENTS_BYTES_MAX });
  if (!parsed.ok) {
    if (parsed.code === 'not_json')
      return { ok: false, code: 'arguments_not_json', message: notJson(text, parsed) };
    const message =
      `The tool was not run: its arguments cannot be kept faithfully${at(parsed.at)}. ` + parsed.message;
    return { ok: false, code: 'arguments_unstorable', message };
  }
  if (isObject(parsed.value)) return { ok: true, value: parsed.value };
  const message =
    `The tool was not run: its arguments are ${kindOf(parsed.value)}, not a JSON object. ` +
    'Call it again with an object, such as {"name": "value"}, or {} where it takes none.';
  return { ok: false, code: 'arguments_not_object', message };
}

function notJson(text: string, refusal: { readonly at: string; readonly message: string }): string {
  if (text.trim() === '') {
    return 'The tool was not run: no arguments were written. Call it again with a JSON object.';
  }
  if (text.trimStart().startsWith('```')) {
    return (
      'The tool was not run: its arguments stand in a code fence. ' +
      'Call it again with the JSON object alone, without ``` and without any other text.'
    );
  }
  return (
    `The tool was not run: its arguments are not JSON${at(refusal.at)}. ${refusal.message} ` +
    'Call it again with one complete JSON object.'
  );
}

const TOOL_NAMES_SHOWN_MAX = 30;

function unknownToolMessage(name: string, tools: ReadonlyMap<string, unknown>): string {
  const names = [...tools.keys()];
  const shown = names.slice(0, TOOL_NAMES_SHOWN_MAX).join(', ');
  const rest = names.length > TOOL_NAMES_SHOWN_MAX ? ` and ${names.length - TOOL_NAMES_SHOWN_MAX} more` : '';
  const what =
    names.length === 0 ? 'There are no tools here; answer without.' : `Use one of: ${shown}${rest}.`;
  return `There is no tool named "${excerpt(name, 64)}", so nothing was run. ${what}`;
}

// The narrowest of the providers' rules for a call id that is sent back to them.
const CALL_ID = /^[A-Za-z0-9_-]{1,64}$/;

/** The provider's id where it can be used, else one made of prefix and slot: the same on every replay. */
function chooseCallId(
  providerCallId: string,
  slot: number,
  used: ReadonlySet<string>,
  prefix: string,
): string {
  if (CALL_ID.test(providerCallId) && !used.has(providerCallId)) return providerCallId;
  const base = `${prefix.replace(/[^A-Za-z0-9_-]/g, '_').slice(0, 48) || 'call'}_${slot}`;
  let callId = base;
  for (let again = 2; used.has(callId); again += 1) callId = `${base}_${again}`;
  return callId;
}

/** A name that no tool has still goes back to the provider with the transcript, so it must fit there. */
function replayableToolName(name: string): string {
  return name.replace(/[^A-Za-z0-9_-]/g, '_').slice(0, 64) || 'unnamed';
}

function hasProperties(schema: JsonObject): boolean {
  const properties = schema['properties'];
  return isObject(properties) && Object.keys(properties).length > 0;
}

function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function kindOf(value: JsonValue): string {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'an array' : `a ${typeof value}`;
}

function at(pointer: string): string {
  return pointer === '' ? '' : ` (at ${pointer})`;
}
