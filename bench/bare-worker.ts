import { fileURLToPath } from 'node:url';
import { Context } from '@temporalio/activity';
import { ApplicationFailure } from '@temporalio/common';
import { bundleWorkflowCode, NativeConnection, Runtime, Worker } from '@temporalio/worker';
import { createModelClient } from '../activities/models/create-model-client.js';
import { loadProject } from '../activities/project/load-project.js';
import type { AgentManifest } from '../shared/domain/agents.js';
import type { AssistantPart, ModelClient, ModelResponsePart } from '../shared/domain/models.js';
import { announceReady, untilAskedToStop } from '../shared/process/child.js';
import { readConfig, requireServers } from '../shared/process/config.js';
import { runMain } from '../shared/process/exit.js';
import type { BareActivities } from './bare-protocol.js';

const SILENT = { trace() {}, debug() {}, info() {}, warn() {}, error() {}, log() {} };

/** The worker of the other side: the same project, the same model client, the same worker options, no ledger. */
async function main(): Promise<void> {
  const config = requireServers(readConfig(process.env));
  Runtime.install({ logger: SILENT, shutdownSignals: [] });
  const project = await loadProject(config.project, process.env);
  const agent = project.agents[0];
  const targetUrl = process.env['BENCH_TARGET'];
  if (agent === undefined || targetUrl === undefined) throw new Error('no agent, or no BENCH_TARGET');
  const secrets = (name: string): string | undefined => process.env[name];
  const model = createModelClient(agent.model, { secrets, projectDir: project.dir });
  const connection = await NativeConnection.connect(config.temporal.connection);
  const worker = await Worker.create({
    connection,
    namespace: config.temporal.namespace,
    taskQueue: config.taskQueue,
    workflowBundle: await bundleWorkflowCode({
      workflowsPath: fileURLToPath(new URL('bare-workflow.ts', import.meta.url)),
      logger: SILENT,
    }),
    activities: createActivities(agent, model, targetUrl),
    // As workers/create-worker.ts has it.
    maxConcurrentActivityTaskExecutions: 100,
  });
  const working = worker.run();
  announceReady({ kind: 'ready', role: 'worker', detail: { taskQueue: config.taskQueue } });
  await Promise.race([untilAskedToStop(), working]);
  worker.shutdown();
  await working;
  await project.close();
  await connection.close();
  if (process.connected) process.disconnect();
}

function createActivities(agent: AgentManifest, model: ModelClient, targetUrl: string): BareActivities {
  const tools = agent.tools.map(({ name, description, inputSchema }) => ({ name, description, inputSchema }));
  return {
    async callModel({ runId, step, messages }) {
      const { cancellationSignal: signal, info } = Context.current();
      const outcome = await model.call(
        {
          system: agent.instructions,
          messages,
          tools,
          maxOutputTokens: agent.model.maxOutputTokens,
          callKey: `${runId}:s${step}`,
          attempt: info.attempt,
        },
        { signal, onChunk: () => undefined },
      );
      if (outcome.kind === 'failed') throw ApplicationFailure.retryable(outcome.detail, outcome.reason);
      return outcome.response.parts.map(partOf);
    },
    async callTool({ key, arguments: args }) {
      const response = await fetch(`${targetUrl}/changes`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'idempotency-key': key },
        body: JSON.stringify(args),
        signal: Context.current().cancellationSignal,
      });
      const text = await response.text();
      if (!response.ok) throw ApplicationFailure.retryable(`HTTP ${response.status}: ${text}`, 'http');
      return text;
    },
  };
}

function partOf(part: ModelResponsePart): AssistantPart {
  if (part.type !== 'raw_tool_call') return part;
  const { providerCallId: callId, toolName, argumentsText } = part;
  return { type: 'tool_call', callId, toolName, arguments: JSON.parse(argumentsText) };
}

runMain('bare worker', main);
