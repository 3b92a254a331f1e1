import {
  condition,
  continueAsNew,
  defineSignal,
  setCurrentDetails,
  setHandler,
  sleep,
  upsertSearchAttributes,
  workflowInfo,
} from '@temporalio/workflow';
import { defineSearchAttributeKey } from '@temporalio/common';
import {
  NUDGE_SIGNAL,
  type ResumePoint,
  type RunInput,
  SEARCH_ATTRIBUTES,
  type TrailEntry,
} from '../shared/domain/protocol.js';
import { type RunEvent, type RunState, step, type TransitionReason } from '../shared/domain/run-machine.js';
import { effectActivities, readActivities } from './activities.js';
import { TrailBuffer } from './trail.js';

const STATE_ATTRIBUTE = defineSearchAttributeKey(SEARCH_ATTRIBUTES.state, 'KEYWORD');
const nudgeSignal = defineSignal(NUDGE_SIGNAL);

/** Hears nudges for the whole execution; set before the first await. */
export class Nudges {
  #count = 0;
  #seen = 0;

  constructor() {
    setHandler(nudgeSignal, () => {
      this.#count += 1;
    });
  }

  /** Until somebody says that the ledger holds something new. Holds no worker. */
  async wait(): Promise<void> {
    await condition(() => this.#count > this.#seen);
    this.#seen = this.#count;
  }
}

/**
 * One execution's view of the run, from one resume point on: where it stands, what it has decided and not committed,
 * and the doors to the world.
 */
export class Run {
  readonly id: string;
  readonly turn: number;
  step: number;
  state: RunState;
  readonly trail: TrailBuffer;
  readonly #nudges: Nudges;
  readonly act: ReturnType<typeof effectActivities>['act'];
  readonly think: ReturnType<typeof readActivities>['think'];
  readonly queryEffect: ReturnType<typeof readActivities>['queryEffect'];
  readonly #input: RunInput;
  readonly #firstStep: number;
  /** Whether this execution got further than where the next one would begin again. */
  #hasAdvanced = false;

  constructor(input: RunInput, from: ResumePoint, nudges: Nudges) {
    this.id = input.runId;
    this.turn = from.turn;
    this.step = Math.max(from.step, 1);
    this.#firstStep = this.step;
    this.state = from.state;
    this.trail = new TrailBuffer(input.runId, from.trailPosition);
    this.#nudges = nudges;
    this.#input = input;
    this.act = effectActivities(input.settings.heartbeatSeconds).act;
    const reads = readActivities(input.settings.heartbeatSeconds);
    this.think = reads.think;
    this.queryEffect = reads.queryEffect;
  }

  /** Decides a move of the run machine; it becomes durable with the next ledger write. */
  move(event: RunEvent, reason: TransitionReason): void {
    const outcome = step(this.state, event);
    if (outcome.kind === 'refused') throw new Error(`bug: ${event} is not allowed in ${this.state}`);
    if (outcome.kind === 'same') return;
    this.state = outcome.to;
    this.trail.push({ kind: 'move', to: outcome.to, reason });
  }

  note(entry: TrailEntry): void {
    this.trail.push(entry);
  }

  /** The model has answered the current step: from here on a next execution begins with it. */
  stepAnswered(): void {
    if (this.step > this.#firstStep) this.#hasAdvanced = true;
  }

  /** Makes everything durable and tells operators where the run rests. Before every wait and every end. */
  async flush(): Promise<void> {
    await this.trail.flush();
    this.show();
  }

  /** For the operators of the Temporal Web UI: the search attribute and the details of the run. */
  show(): void {
    const info = workflowInfo();
    if (info.typedSearchAttributes.get(STATE_ATTRIBUTE) !== this.state) {
      upsertSearchAttributes([{ key: STATE_ATTRIBUTE, value: this.state }]);
    }
    const { apiUrl } = this.#input.settings;
    const link =
      apiUrl === ''
        ? ''
        : `\n\n[run](${apiUrl}/v1/runs/${this.id}) · [effects](${apiUrl}/v1/runs/${this.id}/effects)`;
    setCurrentDetails(`**${this.state}** · turn ${this.turn} · step ${this.step}${link}`);
  }

  /** A durable wait of fixed length; the trail is flushed first. */
  async pause(waitMs: number): Promise<void> {
    await this.flush();
    await sleep(waitMs);
    this.#hasAdvanced = true;
  }

  /** A wait until somebody says that the ledger holds something new; the trail is flushed first. */
  async waitForNews(): Promise<void> {
    await this.flush();
    await this.#nudges.wait();
    this.#hasAdvanced = true;
  }

  /** Goes on in a fresh history before this one grows large; everything is durable first, so nothing is carried. */
  async continueAsNewIfLarge(): Promise<void> {
    const info = workflowInfo();
    if (!info.continueAsNewSuggested && info.historyLength < this.#input.settings.historyEventsMax) return;
    // The next execution takes up the newest step from its beginning. One that got no further than that would hand over
    // at the same place, and so would the next, for ever.
    if (!this.#hasAdvanced) return;
    await this.flush();
    await continueAsNew<(input: RunInput) => Promise<unknown>>({
      ...this.#input,
      continued: this.#input.continued + 1,
    });
  }
}
