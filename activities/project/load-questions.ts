import type { QuestionManifest } from '../../shared/domain/questions.js';
import { digestDeclaration } from '../tools/declaration.js';
import { fitsOf } from '../tools/input-schema.js';
import type { LoadedTools } from './load-tools.js';
import type { ProjectSource } from './project-source.js';

/** The questions of a project by name; what is wrong with them is noted in the source. */
export function loadQuestions(
  source: ProjectSource,
  tools: LoadedTools,
): ReadonlyMap<string, QuestionManifest> {
  const questions = new Map<string, QuestionManifest>();
  for (const [name, declared] of Object.entries(source.declared.questions)) {
    const at = ['questions', name];
    const { description, answer, role, expiresSeconds, onExpiry } = declared;
    const fits = fitsOf(answer);
    if (typeof fits === 'string') source.problem([...at, 'answer'], fits);
    if (tools.byName.has(name) || tools.broken.has(name)) {
      source.problem(at, `a tool ${name} is declared too — rename one of them`);
    }
    const rules = { description, answerSchema: answer, role, expiresSeconds, onExpiry };
    questions.set(name, { name, version: digestDeclaration('question', { name, ...rules }), ...rules });
  }
  return questions;
}
