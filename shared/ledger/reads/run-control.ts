import type { CommandKind } from '../../domain/control-table.js';
import { EFFECT_STATES, type EffectState } from '../../domain/effect-machine.js';
import type { ControlState, RunState } from '../../domain/run-machine.js';
import type { ResumeFault } from '../commands.js';
import type { CooldownKind } from './list-cooldowns.js';
import { type InterruptKind, type InterruptState, RAN_OUT, TOOL_OF_WAIT } from './list-interrupts.js';
import { isoTime, jsonTime } from './row-values.js';

/** What somebody has asked of a run, and what it still waits for. */
export interface RunControl {
  readonly deadline_at: string;
  /** While a pause is being carried out: what is in flight and settles first. */
  readonly draining: {
    readonly effects: number;
    readonly model_calls: number;
    readonly children: number;
  } | null;
  /** The pause is complete: nothing is in flight. */
  readonly drained: boolean;
  /** Waits that nobody has decided and that have not expired; at most 100, oldest first. */
  readonly interrupts: readonly OpenInterrupt[];
  /** Waits that are over, and whose outcome the run has not taken up yet; at most 100, oldest first. */
  readonly taking_up: readonly DecidedInterrupt[];
  /** Commands in force that the run has not carried out yet; at most 100, oldest first. */
  readonly commands: readonly PendingCommand[];
  /** What asked to come later, while the run waits for its turn there. */
  readonly cooldown: RunCooldown | null;
  /** What the run has pinned and misses, so that a resume is not carried out. */
  readonly resume_blocked: ResumeBlock | null;
}

export interface ResumeBlock {
  readonly since: string;
  readonly checked_at: string;
  /** The process that looked last. */
  readonly worker: string;
  readonly faults: readonly ResumeFault[];
}

export interface RunCooldown {
  readonly cooldown_id: string;
  readonly kind: CooldownKind;
  readonly target: string;
  readonly reason: string;
  readonly until: string;
  /** When it is the run's turn. */
  readonly turn_at: string;
}

export interface OpenInterrupt {
  readonly interrupt_id: string;
  readonly kind: InterruptKind;
  readonly effect_id: string | null;
  readonly tool: string;
  readonly required_role: string;
  readonly expires_at: string;
}

/** A wait that somebody decided, or whose time is over, while the run still stands where it waited. */
export interface DecidedInterrupt {
  readonly interrupt_id: string;
  readonly kind: InterruptKind;
  readonly effect_id: string | null;
  readonly tool: string;
  readonly state: InterruptState;
  readonly decided_at: string;
}

export interface PendingCommand {
  readonly command_id: string;
  readonly kind: CommandKind;
  readonly actor_id: string;
  readonly created_at: string;
}

/** What a cancelled run had done, effect by effect (SPEC 4). Every effect stands in exactly one list. */
export interface CancelReport {
  /** The outside world has it: succeeded, or found to be committed. */
  readonly happened: EffectGroup;
  /** It was sent and did nothing: the target refused it, or was found not to have committed it. */
  readonly did_not_happen: EffectGroup;
  /** It never left. */
  readonly stopped: EffectGroup;
  /** Nobody knows; always empty once the run is `cancelled`. */
  readonly unknown: EffectGroup;
}

export interface EffectGroup {
  readonly count: number;
  /** At most 100, in the order they were asked for. */
  readonly effects: readonly {
    readonly effect_id: string;
    readonly tool: string;
    readonly state: EffectState;
    /** The outside name of what was done. */
    readonly reference: string | null;
  }[];
}

const GROUP_OF = {
  intended: 'stopped',
  dispatching: 'unknown',
  succeeded: 'happened',
  rejected: 'did_not_happen',
  unknown: 'unknown',
  committed: 'happened',
  not_committed: 'did_not_happen',
  denied: 'stopped',
  withdrawn: 'stopped',
  superseded: 'stopped',
} as const satisfies Record<EffectState, keyof CancelReport>;

const LISTED_MAX = 100;

const OVER = `(i.state in ('approved', 'denied', 'revoked', 'answered', 'expired') or i.state = 'open' and ${RAN_OUT})`;
const DECIDED_AT = 'coalesce(i.decided_at, i.expires_at)';
/** Whether the run stands where it stood when a wait `i` was decided. */
const STANDS = `not exists (select from holdfast.transitions t
                  where t.run_id = i.run_id and t.region = 'run' and t.created_at > ${DECIDED_AT})`;
/**
 * Whether what became of a wait `i`, of an effect `e` where it has one, is still to be taken up by its run `r`: told by what
 * taking it up leaves behind (a dispatch, a denial, the next wait, a result, a move), never by how long ago it was.
 */
const TAKEN_UP_YET = `case
    when i.kind = 'approval' then e.state <> 'intended' or e.attempts > 0 or exists (
      select from holdfast.interrupts n where n.effect_id = i.effect_id and n.created_at > i.created_at)
    when i.kind = 'input' and i.slot is not null then exists (
      select from holdfast.messages m where m.run_id = i.run_id and m.turn = i.turn and m.step = i.step
         and m.position = i.slot + 2)
    else not (r.state = case i.kind when 'reconciliation' then 'needs_reconciliation' else 'waiting_for_input' end
              and ${STANDS}) end`;

/** Columns of the run read, for a row `r` of holdfast.runs; `controlOf` and `cancelReportOf` read them. */
export const RUN_CONTROL_COLUMNS = `
           case when r.control in ('pause_requested', 'pausing') then jsonb_build_object(
             'effects', (select count(*) from holdfast.effects e
                          where e.run_id = r.run_id and e.state = 'dispatching'),
             'model_calls', (select count(*) from holdfast.model_attempts a
                              join holdfast.model_calls m using (run_id, turn, step)
                             where a.run_id = r.run_id and m.state = 'calling' and a.attempt = m.attempts
                               and a.ended_at is null),
             'children', (select count(*) from holdfast.child_runs c join holdfast.runs k on k.run_id = c.child_run_id
                           where c.parent_run_id = r.run_id and c.on_cancel = 'cancel' and k.ended_at is null
                             and k.control in ('pause_requested', 'pausing'))) end as draining,
           (select coalesce(jsonb_agg(to_jsonb(w) order by w.interrupt_id), '[]') from (
              select i.interrupt_id, i.kind, i.effect_id, ${TOOL_OF_WAIT} as tool, i.required_role, i.expires_at
                from holdfast.interrupts i left join holdfast.effects e using (effect_id)
               where i.run_id = r.run_id and i.state = 'open' and not ${RAN_OUT}
               order by i.interrupt_id limit ${LISTED_MAX}) w
           ) as open_interrupts,
           (select coalesce(jsonb_agg(to_jsonb(w) order by w.interrupt_id), '[]') from (
              select i.interrupt_id, i.kind, i.effect_id, ${TOOL_OF_WAIT} as tool, ${DECIDED_AT} as decided_at,
                     case i.state when 'open' then 'expired' else i.state end as state
                from holdfast.interrupts i left join holdfast.effects e using (effect_id)
               where i.run_id = r.run_id and r.ended_at is null and ${OVER} and not (${TAKEN_UP_YET})
               order by i.interrupt_id limit ${LISTED_MAX}) w
           ) as taking_up,
           (select coalesce(jsonb_agg(to_jsonb(p) order by p.command_id), '[]') from (
              select command_id, kind, actor_id, created_at from holdfast.commands
               where run_id = r.run_id and fate = 'accepted' order by command_id limit ${LISTED_MAX}) p
           ) as pending_commands,
           (select jsonb_build_object('cooldown_id', c.cooldown_id, 'kind', c.kind, 'target', c.target,
                   'reason', c.reason, 'until', c.until_at, 'turn_at', r.cooldown_slot_at)
              from holdfast.cooldowns c
             where c.cooldown_id = r.cooldown_id and r.cooldown_slot_at > clock_timestamp() and r.ended_at is null
           ) as cooldown,
           (select jsonb_build_object('since', b.since, 'checked_at', b.checked_at, 'worker', b.worker, 'faults', b.faults)
              from holdfast.resume_blocks b
             where b.run_id = r.run_id and b.cleared_at is null and r.control = 'resume_requested') as resume_blocked,
           case when r.state = 'cancelled' then (
             select coalesce(jsonb_agg(jsonb_build_object(
               'effect_id', f.effect_id, 'tool', f.tool, 'state', f.state, 'reference', c.reference)
               order by f.turn, f.step, f.slot, f.redo), '[]')
               from (select effect_id, tool, state, turn, step, slot, redo,
                            row_number() over (partition by state order by turn, step, slot, redo) as place
                       from holdfast.effects where run_id = r.run_id) f
               left join holdfast.receipts c using (effect_id)
              where f.place <= ${LISTED_MAX}) end as cancelled_effects`;

type EffectLine = EffectGroup['effects'][number];

export interface RunControlRow {
  readonly state: RunState;
  readonly control: ControlState;
  readonly deadline_at: Date;
  readonly draining: RunControl['draining'];
  readonly open_interrupts: readonly OpenInterrupt[];
  readonly taking_up: readonly DecidedInterrupt[];
  readonly pending_commands: readonly PendingCommand[];
  readonly cooldown: RunCooldown | null;
  readonly resume_blocked: ResumeBlock | null;
  readonly effect_counts: Readonly<Record<string, number>>;
  /** The first of each state, in order; null unless the run is `cancelled`. */
  readonly cancelled_effects: readonly EffectLine[] | null;
}

/** The control section of a run read. */
export function controlOf(row: RunControlRow): RunControl {
  return {
    deadline_at: isoTime(row.deadline_at),
    draining: row.draining,
    drained: row.control === 'paused',
    interrupts: row.open_interrupts.map((line) => ({ ...line, expires_at: jsonTime(line.expires_at) })),
    taking_up: row.taking_up.map((line) => ({ ...line, decided_at: jsonTime(line.decided_at) })),
    commands: row.pending_commands.map((line) => ({ ...line, created_at: jsonTime(line.created_at) })),
    cooldown: cooldownOf(row.cooldown),
    resume_blocked: blockOf(row.resume_blocked),
  };
}

function blockOf(block: ResumeBlock | null): ResumeBlock | null {
  if (block === null) return null;
  return { ...block, since: jsonTime(block.since), checked_at: jsonTime(block.checked_at) };
}

function cooldownOf(cooldown: RunCooldown | null): RunCooldown | null {
  if (cooldown === null) return null;
  return { ...cooldown, until: jsonTime(cooldown.until), turn_at: jsonTime(cooldown.turn_at) };
}

/** What a cancelled run had done; null for a run that is not. */
export function cancelReportOf(row: RunControlRow): CancelReport | null {
  const { cancelled_effects: listed, effect_counts: counts } = row;
  if (listed === null) return null;
  const groupOf = (name: keyof CancelReport): EffectGroup => ({
    count: EFFECT_STATES.reduce(
      (sum, state) => sum + (GROUP_OF[state] === name ? (counts[state] ?? 0) : 0),
      0,
    ),
    effects: listed.filter(({ state }) => GROUP_OF[state] === name).slice(0, LISTED_MAX),
  });
  return {
    happened: groupOf('happened'),
    did_not_happen: groupOf('did_not_happen'),
    stopped: groupOf('stopped'),
    unknown: groupOf('unknown'),
  };
}
