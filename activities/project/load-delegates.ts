import type { DelegateManifest } from '../../shared/domain/delegates.js';
import type { QuestionManifest } from '../../shared/domain/questions.js';
import { digestDeclaration } from '../tools/declaration.js';
import type { LoadedTools } from './load-tools.js';
import type { ProjectSource } from './project-source.js';

/**
 * The delegates of a project by name; what is wrong with them is noted in the source. Agents may start each other in a
 * circle: the ledger bounds how deep a tree of runs grows.
 */
export function loadDelegates(
  source: ProjectSource,
  taken: LoadedTools & { readonly questions: ReadonlyMap<string, QuestionManifest> },
): ReadonlyMap<string, DelegateManifest> {
  const delegates = new Map<string, DelegateManifest>();
  for (const [name, declared] of Object.entries(source.declared.delegates)) {
    const at = ['delegates', name];
    if (!Object.hasOwn(source.declared.agents, declared.agent)) {
      source.problem([...at, 'agent'], `there is no agent ${declared.agent} — declare it under agents`);
    }
    if (taken.byName.has(name) || taken.broken.has(name)) {
      source.problem(at, `a tool ${name} is declared too — rename one of them`);
    }
    if (taken.questions.has(name)) {
      source.problem(at, `a question ${name} is declared too — rename one of them`);
    }
    delegates.set(name, { name, version: digestDeclaration('delegate', { name, ...declared }), ...declared });
  }
  return delegates;
}
