import {
  CancellationScope,
  condition,
  continueAsNew,
  defineSignal,
  isCancellation,
  setCurrentDetails,
  setHandler,
  upsertSearchAttributes,
  workflowInfo,
} from '@temporalio/workflow';
import { defineSearchAttributeKey } from '@temporalio/common';
import {
  type ActAnswer,
  type LookAnswer,
  NUDGE_SIGNAL,
  type PlannedSlot,
  type ResumeAnswer,
  type ResumePoint,
  type RunInput,
  SEARCH_ATTRIBUTES,
  type ThinkAnswer,
  type Trail,
  type TrailEntry,
} from '../shared/domain/protocol.js';
import { type RunEvent, type RunState, step, type TransitionReason } from '../shared/domain/run-machine.js';
import { effectActivities, fastLane, ledger, readActivities } from './activities.js';
import { CancelAsked, OutOfStep } from './endings.js';
import { TrailBuffer } from './trail.js';

const STATE_ATTRIBUTE = defineSearchAttributeKey(SEARCH_ATTRIBUTES.state, 'KEYWORD');
const nudgeSignal = defineSignal(NUDGE_SIGNAL);

/** Hears nudges for the whole execution; set before the first await. */
export class Nudges {
  #count = 0;

  constructor() {
    setHandler(nudgeSignal, () => {
      this.#count += 1;
    });
  }

  /** How many came so far: what a listener has seen. */
  get count(): number {
    return this.#count;
  }

  /** Until one comes after those of `seen`, or `waitMs` is over; null waits for ever. Holds no worker. */
  async after(seen: number, waitMs: number | null): Promise<void> {
    const came = (): boolean => this.#count > seen;
    if (waitMs === null) await condition(came);
    else await condition(came, Math.max(waitMs, 1));
  }
}

/**
 * One execution's view of the run, from one resume point on: where it stands, what it has decided and not committed,
 * and the doors to the world.
 */
export class Run {
  readonly id: string;
  turn: number;
  step: number;
  state: RunState;
  readonly trail: TrailBuffer;
  readonly #nudges: Nudges;
  readonly #act: ReturnType<typeof effectActivities>['act'];
  readonly #think: ReturnType<typeof readActivities>['think'];
  readonly queryEffect: ReturnType<typeof readActivities>['queryEffect'];
  readonly #input: RunInput;
  /** The nudges that came before the last look: a later one, even before a wait begins, ends the wait. */
  #looked = 0;
  /** Calls that a cancel aborts are made in it: one for many, since each scope weighs on the one around it. */
  #calls = new CancellationScope();
  #callsInFlight = 0;
  #retired = false;
  /** A cancel was seen beside the run's own loop, and calls in flight were aborted for it. */
  #aborted = false;
  /** From here on a cancel is being carried out, and no longer news. */
  #windsDown = false;
  #undoes = false;
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
    this.#act = effectActivities(input.settings.heartbeatSeconds).act;
    const reads = readActivities(input.settings.heartbeatSeconds);
    this.#think = reads.think;
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

  /** Takes back the last move, to `state`: the ledger refused it, so that it was never made. */
  takeBack(state: RunState): void {
    this.trail.takeBack();
    this.state = state;
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

  /** A durable wait of fixed length, flushed first. A pause holds it: what comes due meanwhile is taken up after it. */
  async waitFor(waitMs: number): Promise<void> {
    await this.flush();
    const due = Date.now() + waitMs;
    do {
      await this.#nudges.after(this.#looked, due - Date.now());
      await this.obey();
    } while (Date.now() < due);
    this.#hasAdvanced = true;
  }

  /** Until the ledger holds something new, or `waitMs` is over; then what stands there. */
  async waitForNews(waitMs: number | null): Promise<LookAnswer> {
    await this.flush();
    await this.#nudges.after(this.#looked, waitMs);
    this.#hasAdvanced = true;
    return await this.obey();
  }

  /**
   * The safe point: does what the control region asks for and returns when the run may go on (SPEC 4).
   *
   * @throws CancelAsked when a cancel is in force and not yet being carried out
   */
  async obey(): Promise<LookAnswer> {
    for (;;) {
      const view = await this.look();
      switch (view.control) {
        case 'active':
          return view;
        case 'cancel_requested':
          if (this.#windsDown) return view;
          throw new CancelAsked();
        case 'pause_requested':
          this.note({ kind: 'control', to: 'pausing', reason: 'pause_requested' });
          if (view.drainingChildren === undefined) {
            this.note({ kind: 'control', to: 'paused', reason: 'drained' });
          }
          await this.flush();
          continue;
        case 'pausing':
          if (view.drainingChildren !== undefined) {
            await this.#untilNudged();
            continue;
          }
          this.note({ kind: 'control', to: 'paused', reason: 'drained' });
          await this.flush();
          continue;
        case 'paused':
          await this.#untilNudged();
          continue;
        case 'resume_requested':
        case 'claiming': {
          const claimed = await this.trail.ride<ResumeAnswer>((trail) =>
            ledger.claimResume({ runId: this.id, trail }),
          );
          // The sweeper tells it again and again while the command is not carried out.
          if (claimed.kind === 'blocked') await this.#untilNudged();
        }
      }
    }
  }

  /** Rests at the safe point until the ledger holds something new, in a fresh history where this one is large. */
  async #untilNudged(): Promise<void> {
    await this.#nudges.after(this.#looked, null);
    this.#hasAdvanced = true;
    if (this.isLarge) await this.continueAsNew();
  }

  /** What stands in the ledger now. */
  async look(): Promise<LookAnswer> {
    const seen = this.#nudges.count;
    const view = await ledger.look({ runId: this.id, position: this.trail.committed });
    if (view.kind !== 'look') throw new OutOfStep(view.kind);
    this.#looked = seen;
    return view;
  }

  /** One model call at the current step, in the lane that the model is declared for. */
  think(trail: Trail): Promise<ThinkAnswer> {
    const lane = this.#input.modelIsShort ? fastLane.think : this.#think;
    const place = { runId: this.id, turn: this.turn, step: this.step };
    return lane.executeWithOptions({ summary: `step ${this.step}` }, [{ ...place, trail }]);
  }

  /** One attempt at a call of the current step, in the lane that its tool is declared for. */
  act({ slot, short }: Pick<PlannedSlot, 'slot' | 'short'>, redo: number, trail: Trail): Promise<ActAnswer> {
    const lane = short ? fastLane.act : this.#act;
    const place = { runId: this.id, turn: this.turn, step: this.step, slot, redo };
    return lane.executeWithOptions({ summary: `step ${this.step} call ${slot}` }, [{ ...place, trail }]);
  }

  /** Makes a call that a cancel may abort. */
  async abortable<A>(call: () => Promise<A>): Promise<A> {
    this.#callsInFlight += 1;
    try {
      return await this.#calls.run(call);
    } finally {
      this.#callsInFlight -= 1;
    }
  }

  /**
   * Aborts calls in flight as soon as a cancel is in force; beside the run's own loop, which stands at a call then.
   * Ends when the run is retired or Temporal cancels the execution.
   */
  async abortOnCancel(): Promise<void> {
    try {
      for (let seen = 0; !this.#retired;) {
        await this.#nudges.after(seen, null);
        seen = this.#nudges.count;
        if (this.#retired || this.#callsInFlight === 0) continue;
        const view = await ledger.look({ runId: this.id, position: null });
        // What a run undoes is not aborted by the very cancel that asked for it.
        if (view.kind !== 'look' || view.control !== 'cancel_requested' || this.#undoes) continue;
        this.#aborted = true;
        this.#calls.cancel();
        this.#calls = new CancellationScope();
      }
    } catch (error) {
      if (!isCancellation(error)) throw error;
    }
  }

  /**
   * After calls that may have been aborted: their end is no outcome that the run goes on from.
   *
   * @throws CancelAsked when a cancel aborted them
   */
  heedAbort(): void {
    if (this.#aborted && !this.#windsDown) throw new CancelAsked();
  }

  /** For a view of the run that another replaces. */
  retire(): void {
    this.#retired = true;
  }

  /** Marks that a cancel is being carried out: it no longer interrupts what the run still has to do. */
  beginWindDown(): void {
    this.#windsDown = true;
  }

  /** Marks that what the run did is being undone: what it still does are compensations. */
  beginUndo(): void {
    this.#windsDown = true;
    this.#undoes = true;
  }

  /** Whether what the run did is being undone. Its steps wait and are found out about in `compensating`. */
  get undoes(): boolean {
    return this.#undoes;
  }

  /** One effect more is undone: the next execution begins with the one after it. */
  stepUndone(): void {
    this.#hasAdvanced = true;
  }

  /** Whether the run should go on in a fresh history. Asked at every step, so it is no promise. */
  get isLarge(): boolean {
    // The next execution takes up the newest step from its beginning. One that got no further than that would hand over
    // at the same place, and so would the next, for ever.
    if (!this.#hasAdvanced) return false;
    const info = workflowInfo();
    return info.continueAsNewSuggested || info.historyLength >= this.#input.settings.historyEventsMax;
  }

  /** Goes on in a fresh history; everything is durable first, so nothing is carried. */
  async continueAsNew(): Promise<never> {
    await this.flush();
    return await continueAsNew<(input: RunInput) => Promise<unknown>>({
      ...this.#input,
      continued: this.#input.continued + 1,
    });
  }
}
