import { z } from 'zod';
import { effectFields } from './effect-policy.js';
import { TOOL_NAME } from './input-schema.js';

/** One tool of an MCP server that the project uses, as the operator judges it. */
export const mcpToolSchema = z.strictObject({
  /** The name the model sees; the server's own by default. */
  as: z.string().regex(TOOL_NAME, 'a tool name has 1 to 64 letters, digits, _ or -').optional(),
  ...effectFields,
  /** Overrides the rule of the class; an agent's file overrides this one. */
  approval: z.enum(['required', 'not_required']).optional(),
  parallel: z.boolean().optional(),
  /** Ends within 10 seconds as a rule, so its calls take the fast lane: no round trip through Temporal for each. */
  short: z.boolean().default(false),
  /** A call may take this long; with `progressExtends`, this long without a word of progress. */
  timeoutSeconds: z.number().min(1).max(3600).default(60),
  /** A progress notice starts `timeoutSeconds` anew, up to `totalTimeoutSeconds`. */
  progressExtends: z.boolean().default(false),
  totalTimeoutSeconds: z.number().min(1).max(86_400).optional(),
  /** What a result marked `isError` means: refused without a trace, or no one knows. */
  errorsMean: z.enum(['rejected', 'unknown']).default('rejected'),
  /** JSON pointer into the result, to the outside name of the effect. */
  reference: z
    .string()
    .regex(/^(\/([^~/]|~[01])*)*$/, 'a JSON pointer starts with / or is empty')
    .optional(),
});

const serverFields = {
  connectTimeoutSeconds: z.number().min(0.1).max(300).default(30),
  tools: z.record(z.string(), mcpToolSchema),
};

/** An MCP server as a project declares it. Texts may hold `${env:NAME:-default}`. */
export const mcpServerSchema = z.discriminatedUnion('transport', [
  z.strictObject({
    transport: z.literal('stdio'),
    command: z.string().min(1),
    args: z.array(z.string()).default([]),
    /** Beside PATH, HOME and the like; values may hold `${secret:NAME}`. */
    env: z.record(z.string(), z.string()).default({}),
    ...serverFields,
  }),
  z.strictObject({
    transport: z.literal('http'),
    url: z.string().min(1),
    /** Values may hold `${secret:NAME}`. */
    headers: z.record(z.string(), z.string()).default({}),
    ...serverFields,
  }),
]);

/** An MCP server's declaration with its defaults filled in. */
export type McpServerDeclaration = z.output<typeof mcpServerSchema>;
/** One used tool's declaration with its defaults filled in. */
export type McpToolDeclaration = z.output<typeof mcpToolSchema>;
