import type { JsonObject } from '../shared/domain/json.js';
import type { AssistantPart, ModelMessage } from '../shared/domain/models.js';

export const BARE_WORKFLOW = 'bareRun';

export interface BareInput {
  readonly runId: string;
  readonly input: string;
}

export interface BareActivities {
  callModel(call: {
    readonly runId: string;
    readonly step: number;
    readonly messages: ModelMessage[];
  }): Promise<readonly AssistantPart[]>;
  callTool(call: { readonly key: string; readonly arguments: JsonObject }): Promise<string>;
}
