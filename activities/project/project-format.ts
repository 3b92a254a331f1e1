import { z } from 'zod';
import { ON_CANCEL } from '../../shared/domain/delegates.js';
import { ROLES } from '../../shared/domain/roles.js';
import { mcpServerSchema } from '../tools/mcp-format.js';
import { memoryToolSchema } from '../tools/memory-tool.js';
import { policyRuleSchema } from './policy-format.js';

const modelLimits = {
  maxOutputTokens: z.int().min(1).max(1_000_000).default(4096),
  timeoutSeconds: z.number().min(1).max(86_400).default(120),
  /** Answers within 10 seconds as a rule, so its calls take the fast lane. */
  short: z.boolean().default(false),
  /** In millionths of the currency, for a million tokens: 3 dollars are 3000000. */
  price: z
    .strictObject({
      currency: z.string().regex(/^[A-Z]{3}$/, 'a currency has three capital letters, such as USD'),
      inputPerMillion: z.int().min(0).max(1_000_000_000_000),
      outputPerMillion: z.int().min(0).max(1_000_000_000_000),
    })
    .optional(),
};

const remoteModel = {
  model: z.string().min(1),
  /** Name of the variable that holds the key. */
  apiKeyEnv: z
    .string()
    .regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'that is no name of a variable — give the name, never the key')
    .optional(),
  ...modelLimits,
};

/** A way to reach a model. `baseUrl` may hold `${env:NAME:-default}`. */
const modelSchema = z.discriminatedUnion('provider', [
  z.strictObject({ provider: z.literal('scripted'), script: z.string().min(1), ...modelLimits }),
  z.strictObject({ provider: z.literal('openai-compatible'), baseUrl: z.string().min(1), ...remoteModel }),
  z.strictObject({
    provider: z.enum(['openai', 'openai-responses', 'anthropic']),
    baseUrl: z.string().min(1).optional(),
    ...remoteModel,
  }),
]);

const agentSchema = z.strictObject({
  model: z.string(),
  /** A file, or the text itself under `text`. */
  instructions: z.union([z.string().min(1), z.strictObject({ text: z.string().min(1) })]),
  tools: z
    .array(
      z.union([
        z.string(),
        z.strictObject({ name: z.string(), approval: z.enum(['required', 'not_required']).optional() }),
      ]),
    )
    .default([]),
  limits: z
    .strictObject({
      stepsMax: z.int().min(1).max(10_000).default(40),
      toolCallsMax: z.int().min(0).max(10_000).default(60),
      wallClockSecondsMax: z
        .int()
        .min(1)
        .max(366 * 86_400)
        .default(3600),
    })
    .prefault({}),
  /** Longer transcripts are shown without their oldest messages; without it they are shown whole. */
  context: z.strictObject({ charactersMax: z.int().min(1_000).max(100_000_000) }).optional(),
});

const name = z.string().regex(/^[a-zA-Z0-9_-]{1,64}$/, 'a name has 1 to 64 letters, digits, _ or -');

/** A question that agents may put to a person. */
const questionSchema = z.strictObject({
  /** For the model: when to ask, and what comes back. */
  description: z.string().min(1).max(4_000),
  /** JSON Schema of the answer. */
  answer: z.record(z.string(), z.json()),
  /** Who may answer. */
  role: z.enum(ROLES),
  expiresSeconds: z
    .int()
    .min(1)
    .max(90 * 86_400)
    .default(86_400),
  /** `tell_model`: the model goes on without an answer. `fail`: the run fails. */
  onExpiry: z.enum(['tell_model', 'fail']).default('tell_model'),
});

/** A part of what the parent may use: above 0, at most all of it. */
const part = z.number().gt(0).max(1);

/** An agent that other agents may start as a child run. */
const delegateSchema = z.strictObject({
  agent: z.string(),
  /** For the model: what the other agent does, and what it must be told. */
  description: z.string().min(1).max(4_000),
  /** What a cancel of the parent makes of the child; `cancel` holds for its pause too. */
  onCancel: z.enum(ON_CANCEL).default('cancel'),
  /** Neighbouring calls of one step may run beside each other. */
  parallel: z.boolean().default(false),
  /** What a child may use of its parent's limits. */
  share: z
    .strictObject({ steps: part.default(0.5), toolCalls: part.default(0.5), wallClock: part.default(1) })
    .prefault({}),
});

/** A project file. Paths in it are relative to its own folder. */
export const projectSchema = z.strictObject({
  version: z.literal(1),
  models: z.record(name, modelSchema),
  tools: z
    .strictObject({
      functions: z.array(z.string().min(1)).default([]),
      http: z.array(z.string().min(1)).default([]),
      mcp: z.record(name, mcpServerSchema).default({}),
      /** Tools that write the memory of the run's thread, by name. */
      memory: z.record(name, memoryToolSchema).default({}),
    })
    .prefault({}),
  questions: z.record(name, questionSchema).default({}),
  delegates: z.record(name, delegateSchema).default({}),
  agents: z.record(name, agentSchema),
  /** When a person must approve, whatever the agents say; every rule that fits a call counts. */
  policy: z.array(policyRuleSchema).max(200).default([]),
});

/** A project file with its defaults filled in. */
export type ProjectFile = z.output<typeof projectSchema>;
/** A model's declaration with its defaults filled in. */
export type ModelDeclaration = z.output<typeof modelSchema>;
/** An agent's declaration with its defaults filled in. */
export type AgentDeclaration = z.output<typeof agentSchema>;
