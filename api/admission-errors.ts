import { HoldfastError, type RequestFault } from '../shared/domain/errors.js';
import { excerpt } from '../shared/domain/json-rules.js';

/** The answer to a request for an agent that no worker has registered. */
export function agentNotFound(agent: string, at = 'body/agent'): HoldfastError {
  return new HoldfastError(
    'agent_not_found',
    `No worker has registered an agent "${excerpt(agent, 64)}". GET /v1/agents lists those there are.`,
    { errors: [{ at, problem: 'no such agent' }] },
  );
}

/** The answer to a budget that limits what the agent does not have. */
export function budgetUnmet(agent: string, fault: RequestFault): HoldfastError {
  return new HoldfastError(
    'contract_invalid',
    `The budget limits what agent "${agent}" does not have: ${fault.at} ${fault.problem}. Nothing was started.`,
    { errors: [fault] },
  );
}
