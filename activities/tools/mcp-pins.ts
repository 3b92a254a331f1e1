import { readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import type { JsonObject } from '../../shared/domain/json.js';
import { canonicalJson, checkJsonValue } from '../../shared/domain/strict-json.js';
import { sha256 } from './declaration.js';

/** Name of the lock file beside the project file. */
export const MCP_PINS_FILE = 'mcp-pins.json';

const pinSchema = z.strictObject({
  /** Lower-case hex SHA-256 over the canonical JSON of what stands below it. */
  digest: z.string().regex(/^[0-9a-f]{64}$/),
  description: z.string(),
  inputSchema: z.record(z.string(), z.json()) as z.ZodType<JsonObject>,
  outputSchema: (z.record(z.string(), z.json()) as z.ZodType<JsonObject>).nullable(),
});

const pinsSchema = z.strictObject({
  version: z.literal(1),
  /** By server, then by the server's own name of the tool. */
  servers: z.record(z.string(), z.record(z.string(), pinSchema)),
});

/** What one tool of an MCP server was when an operator last looked at it. */
export type McpPin = z.output<typeof pinSchema>;
/** The content of the lock file. */
export type McpPins = z.output<typeof pinsSchema>;

/** What the digest of a pin is made of, as a server lists it. */
export interface OfferedTool {
  readonly name: string;
  readonly description?: string | undefined;
  readonly inputSchema: unknown;
  readonly outputSchema?: unknown;
}

/** The lock file is missing, unreadable or was changed by hand. */
export class McpPinsError extends Error {
  readonly code = 'mcp_pins_invalid';
}

/**
 * The pin of a tool as it is offered now. Descriptions count: the model acts on them. A server's hints
 * (`idempotentHint` and the like) do not: policy is the operator's.
 *
 * @throws McpPinsError when the server's schema cannot be stored faithfully
 */
export function pinOf(offered: OfferedTool): McpPin {
  const content = checkJsonValue({
    name: offered.name,
    description: offered.description ?? '',
    inputSchema: offered.inputSchema,
    outputSchema: offered.outputSchema ?? null,
  });
  if (!content.ok) {
    throw new McpPinsError(`The schema of MCP tool ${offered.name} cannot be stored: ${content.message}`);
  }
  const { description, inputSchema, outputSchema } = content.value as unknown as McpPin;
  return { digest: sha256(canonicalJson(content.value)), description, inputSchema, outputSchema };
}

/**
 * Reads the lock file of a project; no file means no pins.
 *
 * @throws McpPinsError for a file that is no lock file, or whose content and digests disagree
 */
export async function readMcpPins(projectDir: string): Promise<McpPins> {
  const path = join(projectDir, MCP_PINS_FILE);
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { version: 1, servers: {} };
    throw error;
  }
  const pins = parsePins(text);
  for (const [server, tools] of Object.entries(pins.servers)) {
    for (const [name, pin] of Object.entries(tools)) {
      if (pinOf({ name, ...pin }).digest === pin.digest) continue;
      throw new McpPinsError(`the pin of ${server}/${name} was changed by hand — pin the MCP tools again`);
    }
  }
  return pins;
}

/** Writes the lock file, whole or not at all. */
export async function writeMcpPins(projectDir: string, pins: McpPins): Promise<void> {
  const path = join(projectDir, MCP_PINS_FILE);
  // Sorted by canonical JSON, then laid out to be read in a review.
  const sorted: unknown = JSON.parse(canonicalJson(pins));
  const draft = `${path}.${process.pid}.tmp`;
  await writeFile(draft, `${JSON.stringify(sorted, null, 2)}\n`);
  await rename(draft, path);
}

function parsePins(text: string): McpPins {
  try {
    return pinsSchema.parse(JSON.parse(text));
  } catch (error) {
    const why =
      error instanceof z.ZodError ? z.prettifyError(error).replace(/\s*\n\s*/g, ' ') : String(error);
    throw new McpPinsError(`it is no lock file of MCP tools (${why}) — pin the MCP tools again`);
  }
}
