import { createHash } from 'node:crypto';
import type { EffectOutcome } from '../../shared/domain/effect-classes.js';
import type { EffectState } from '../../shared/domain/effect-machine.js';
import type { CloseReason, EffectStanding, TrailEntry } from '../../shared/domain/protocol.js';
import {
  type CallPlace,
  claimEffect,
  type ClaimedEffect,
  closeEffect,
  type EffectSettlement,
  examineEffect,
  settleEffect,
} from '../../shared/ledger/effects.js';
import { newId } from '../../shared/ledger/new-id.js';
import { refusalOf } from '../../shared/ledger/refusals.js';
import {
  beginQuery,
  type QueryAnswer,
  type QueryClaim,
  recordQuery,
} from '../../shared/ledger/reconciliation.js';
import type { EffectRow } from './ledger-view.js';
import type { LedgerRun } from './ledger-run.js';

export interface ClaimOptions {
  readonly attemptId?: string;
  readonly redo?: number;
  /** In place of the run's own execution. */
  readonly execution?: string;
  readonly entries?: readonly TrailEntry[];
}

/** One call of a run in the ledger: every function that can touch its effect, and ways to bring it to any state. */
export class LedgerCall {
  readonly run: LedgerRun;
  readonly place: CallPlace;

  constructor(run: LedgerRun, place: CallPlace) {
    this.run = run;
    this.place = place;
  }

  get #db() {
    return this.run.world.db;
  }

  /** Asks for the dispatch, whatever the answer. */
  async claim(options: ClaimOptions = {}): ReturnType<typeof claimEffect> {
    return await claimEffect(this.#db, this.#speaker(options.execution), this.place, {
      trail: this.run.trail(...(options.entries ?? [])),
      redo: options.redo ?? 0,
      attemptId: options.attemptId ?? newId('att'),
      worker: 'test:1',
      leaseMarginMs: 1_000,
    });
  }

  /** The answer in a word: `claimed`, a standing as `state` or `state/next`, what holds it, or the refusal. */
  async ask(options: ClaimOptions = {}): Promise<string> {
    try {
      const answer = await this.claim(options);
      switch (answer.kind) {
        case 'effect':
          return answer.next === null ? answer.state : `${answer.state}/${answer.next}`;
        case 'control':
          return answer.control;
        case 'limit':
          return answer.limit;
        default:
          return answer.kind;
      }
    } catch (error) {
      return refusalOf(error) ?? String(error);
    }
  }

  /** The dispatch, which must be granted. */
  async claimed(options: ClaimOptions = {}): Promise<ClaimedEffect> {
    const claim = await this.claim(options);
    if (claim.kind !== 'claimed') throw new Error(`not claimed: ${JSON.stringify(claim)}`);
    return claim;
  }

  async settle(
    claim: Pick<ClaimedEffect, 'attemptId' | 'fencingToken'>,
    outcome: EffectOutcome,
    changes: Partial<EffectSettlement> = {},
    execution = this.run.execution,
  ): Promise<EffectStanding> {
    return await settleEffect(this.#db, execution, claim, { ...settlementOf(outcome), ...changes });
  }

  /** One attempt with this outcome, reported in time. */
  async attempt(outcome: EffectOutcome, changes: Partial<EffectSettlement> = {}): Promise<ClaimedEffect> {
    const claim = await this.claimed();
    await this.settle(claim, outcome, changes);
    return claim;
  }

  /** One attempt that no worker reports on. */
  async lose(): Promise<ClaimedEffect> {
    const claim = await this.claimed();
    await this.examine();
    return claim;
  }

  async examine(execution?: string): ReturnType<typeof examineEffect> {
    return await examineEffect(this.#db, this.#speaker(execution), this.place, this.run.trail());
  }

  async close(state: 'denied' | 'withdrawn', why: CloseReason, execution?: string): Promise<EffectStanding> {
    return await closeEffect(this.#db, this.#speaker(execution), this.place, {
      ...{ trail: this.run.trail(), state, why },
    });
  }

  async beginQuery(execution?: string): ReturnType<typeof beginQuery> {
    return await beginQuery(this.#db, this.#speaker(execution), this.place, this.run.trail());
  }

  /** One status query, which must be granted, with this answer. */
  async query(answer: QueryAnswer['answer'], changes: Partial<QueryAnswer> = {}): Promise<EffectStanding> {
    const begun = await this.beginQuery();
    if (begun.kind !== 'query') throw new Error(`no query: ${JSON.stringify(begun)}`);
    return await this.record(begun, answer, changes);
  }

  async record(
    query: QueryClaim,
    answer: QueryAnswer['answer'],
    changes: Partial<QueryAnswer> = {},
    execution?: string,
  ): Promise<EffectStanding> {
    return await recordQuery(this.#db, this.#speaker(execution), query, {
      ...queryAnswerOf(answer),
      ...changes,
    });
  }

  /** The newest effect of the call. */
  async effect(): Promise<EffectRow> {
    const rows = await this.run.world.rows<EffectRow>(
      'select * from holdfast.effects where run_id = $1 and step = $2 and slot = $3 order by redo desc limit 1',
      this.run.runId,
      this.place.step,
      this.place.slot,
    );
    if (rows[0] === undefined) throw new Error('the call has no effect');
    return rows[0];
  }

  async state(): Promise<EffectState> {
    return (await this.effect()).state;
  }

  /** Makes the effect's own past longer ago, as if so much time had gone by. */
  async age(seconds: number): Promise<void> {
    const { effect_id } = await this.effect();
    const times = [
      'created_at',
      'first_dispatched_at',
      'last_dispatched_at',
      'unknown_at',
      'series_deadline_at',
    ];
    const back = (column: string) => `${column} = ${column} - make_interval(secs => $2)`;
    await this.run.world.tamper(async (change) => {
      await change(
        `update holdfast.effects set ${times.map(back).join(', ')} where effect_id = $1`,
        effect_id,
        seconds,
      );
      await change(
        `update holdfast.status_queries set ${back('asked_at')} where effect_id = $1`,
        effect_id,
        seconds,
      );
    });
  }

  /** Puts the effect into a state by the lawful way there; `superseded` has none yet, so it is written. */
  async bringTo(state: EffectState): Promise<ClaimedEffect | undefined> {
    switch (state) {
      case 'intended':
        return await this.attempt('not_sent');
      case 'dispatching':
        return await this.claimed();
      case 'succeeded':
      case 'rejected':
      case 'unknown':
        return await this.attempt(state);
      case 'committed':
      case 'not_committed': {
        const late = await this.lose();
        await this.settle(late, state === 'committed' ? 'succeeded' : 'rejected');
        await this.beginQuery();
        return late;
      }
      case 'denied':
        await this.attempt('not_sent');
        await this.close('denied', 'approval_expired');
        return undefined;
      case 'withdrawn':
        await this.attempt('not_sent');
        await this.close('withdrawn', 'retries_exhausted');
        return undefined;
      case 'superseded':
        await this.attempt('not_sent');
        await this.run.world.rows(
          `update holdfast.effects set state = 'superseded', settled_at = now() where run_id = $1 and slot = $2`,
          this.run.runId,
          this.place.slot,
        );
        return undefined;
    }
  }

  #speaker(execution: string | undefined) {
    return { runId: this.run.runId, execution: execution ?? this.run.execution };
  }
}

/** What a worker reports of an attempt with this outcome. */
export function settlementOf(outcome: EffectOutcome): EffectSettlement {
  const body = Buffer.from(`{"said":"${outcome}"}`);
  return {
    outcome,
    reason: outcome === 'unknown' ? 'timed_out' : outcome === 'not_sent' ? 'connect_refused' : null,
    reference: outcome === 'succeeded' ? 'ref-1' : null,
    targetStatus: outcome === 'rejected' ? 'http_422' : null,
    body,
    bodySha256: digest(body),
    contentType: 'application/json',
    truncated: false,
    resultText: `the target said ${outcome}`,
    retryAfterMs: null,
  };
}

/** What a target answers to a status query. */
export function queryAnswerOf(answer: QueryAnswer['answer']): QueryAnswer {
  const body = Buffer.from(`{"status":"${answer}"}`);
  return {
    answer,
    reason: answer === 'inconclusive' ? 'http_503' : null,
    reference: answer === 'found' ? 'ref-found' : null,
    body,
    bodySha256: digest(body),
    contentType: 'application/json',
    truncated: false,
    resultText: answer === 'inconclusive' ? '' : `the target says ${answer}`,
  };
}

const digest = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');
