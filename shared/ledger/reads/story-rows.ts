/** Longest list of effects that a story names one by one in each group; the counts are of all. */
export const STORY_EFFECTS_MAX = 1_000;

/** One source of entries: each gives at, rank, ref, kind, actor, reason, ids and data, for the run `r`. */
interface Source {
  /** Breaks ties of one instant, in the order in which things follow. */
  readonly rank: number;
  readonly columns: string;
  readonly from: string;
}

const place = (row: string) =>
  `lpad(${row}.turn::text, 6, '0') || lpad(${row}.step::text, 6, '0') || lpad(${row}.slot::text, 6, '0')`;

/**
 * Every row that says something happened, from the tables of record alone: transitions, attempts, receipts, commands,
 * waits, decisions, reconciliations. The feed (`run_events`) is no source: a story stands without it.
 */
const SOURCES: readonly Source[] = [
  {
    rank: 10,
    columns: `t.created_at, lpad(t.seq::text, 8, '0'), case t.region when 'run' then 'run_moved' else 'control_moved' end,
      t.actor_id, t.reason, jsonb_build_object('transition', t.seq::text),
      jsonb_build_object('from', t.from_state, 'to', t.to_state)`,
    from: 'holdfast.transitions t where t.run_id = r.run_id',
  },
  {
    rank: 11,
    columns: `x.granted_at, lpad(x.epoch::text, 8, '0'), 'taken_over', 'holdfast:ledger', x.reason,
      jsonb_build_object('execution', x.execution), jsonb_build_object('epoch', x.epoch)`,
    from: `holdfast.run_executions x where x.run_id = r.run_id`,
  },
  {
    rank: 12,
    columns: `s.created_at, s.message_id, 'message_sent', s.actor_id, null,
      jsonb_build_object('thread_id', s.thread_id, 'message_id', s.message_id),
      jsonb_build_object('seq', s.seq, 'policy', s.policy, 'step', coalesce(s.step, 1))`,
    from: 'holdfast.thread_messages s where s.run_id = r.run_id',
  },
  {
    rank: 13,
    columns: `s.decided_at, s.message_id, 'message_rolled_back', 'holdfast:ledger', null,
      jsonb_build_object('thread_id', s.thread_id, 'message_id', s.message_id, 'rolled_back_by', r.rolled_back_by),
      jsonb_build_object('seq', s.seq)`,
    from: `holdfast.thread_messages s where s.run_id = r.run_id and s.state = 'rolled_back'`,
  },
  {
    rank: 14,
    columns: `f.created_at, f.run_id, 'forked_from', f.actor_id, null, jsonb_build_object('run_id', f.source_run_id,
      'checkpoint_id', f.checkpoint_id), jsonb_build_object('mode', f.mode, 'authority', f.authority, 'step', f.cut_step,
      'edited', f.edits <> '{}')`,
    from: 'holdfast.forks f where f.run_id = r.run_id',
  },
  {
    rank: 15,
    columns: `f.created_at, f.run_id, 'forked', f.actor_id, null, jsonb_build_object('run_id', f.run_id,
      'checkpoint_id', f.checkpoint_id), jsonb_build_object('mode', f.mode, 'authority', f.authority)`,
    from: 'holdfast.forks f where f.source_run_id = r.run_id',
  },
  {
    rank: 20,
    columns: `c.created_at, c.command_id, case when c.fate = 'rejected' then 'command_refused' else 'commanded' end,
      c.actor_id, coalesce(c.code, c.payload ->> 'reason'), jsonb_build_object('command_id', c.command_id),
      jsonb_build_object('command', c.kind, 'authority', c.authority)`,
    from: 'holdfast.commands c where c.run_id = r.run_id',
  },
  {
    rank: 21,
    columns: `c.decided_at, c.command_id, case c.fate when 'applied' then 'command_applied' else 'command_expired' end,
      'holdfast:ledger', c.code, jsonb_build_object('command_id', c.command_id), jsonb_build_object('command', c.kind)`,
    from: `holdfast.commands c where c.run_id = r.run_id and c.fate in ('applied', 'expired')`,
  },
  {
    rank: 30,
    columns: `m.started_at, m.attempt_id, 'model_asked', m.worker, null, jsonb_build_object('attempt_id', m.attempt_id),
      jsonb_build_object('step', m.step, 'attempt', m.attempt)`,
    from: 'holdfast.model_attempts m where m.run_id = r.run_id',
  },
  {
    rank: 31,
    columns: `m.ended_at, m.attempt_id, 'model_' || m.outcome, case m.outcome when 'lost' then 'holdfast:ledger' else m.worker end,
      m.reason, jsonb_build_object('attempt_id', m.attempt_id), jsonb_build_object('step', m.step, 'attempt', m.attempt)`,
    from: 'holdfast.model_attempts m where m.run_id = r.run_id and m.outcome is not null',
  },
  {
    rank: 40,
    columns: `e.created_at, ${place('e')} || e.redo, 'effect_intended', 'agent:' || r.agent, null,
      jsonb_strip_nulls(jsonb_build_object('effect_id', e.effect_id, 'idempotency_key', e.idempotency_key,
        'supersedes', e.supersedes)), jsonb_build_object('tool', e.tool, 'effect_class', e.effect_class)`,
    from: 'holdfast.effects e where e.run_id = r.run_id',
  },
  {
    rank: 41,
    columns: `i.created_at, i.interrupt_id, 'asked_somebody', 'holdfast:workflow', null,
      jsonb_strip_nulls(jsonb_build_object('interrupt_id', i.interrupt_id, 'effect_id', i.effect_id)),
      jsonb_build_object('wait', i.kind, 'role', i.required_role, 'quorum', i.quorum)`,
    from: 'holdfast.interrupts i where i.run_id = r.run_id',
  },
  {
    rank: 42,
    columns: `d.created_at, d.interrupt_id || d.decision || d.actor_id, 'somebody_said', d.actor_id, nullif(d.note, ''),
      jsonb_strip_nulls(jsonb_build_object('interrupt_id', d.interrupt_id, 'effect_id', i.effect_id)),
      jsonb_build_object('decision', d.decision, 'authority', d.authority, 'wait', i.kind)`,
    from: 'holdfast.decisions d join holdfast.interrupts i using (interrupt_id) where i.run_id = r.run_id',
  },
  {
    rank: 43,
    columns: `i.decided_at, i.interrupt_id, 'wait_' || i.state, 'holdfast:ledger', null,
      jsonb_strip_nulls(jsonb_build_object('interrupt_id', i.interrupt_id, 'effect_id', i.effect_id)), jsonb_build_object('wait', i.kind)`,
    from: `holdfast.interrupts i where i.run_id = r.run_id and i.state in ('expired', 'superseded', 'withdrawn')`,
  },
  {
    rank: 44,
    columns: `i.consumed_at, i.interrupt_id, 'approval_used', 'holdfast:ledger', null,
      jsonb_strip_nulls(jsonb_build_object('interrupt_id', i.interrupt_id, 'effect_id', i.effect_id)), '{}'::jsonb`,
    from: 'holdfast.interrupts i where i.run_id = r.run_id and i.consumed_at is not null',
  },
  {
    rank: 50,
    columns: `a.started_at, a.attempt_id, 'dispatched', a.worker, null,
      jsonb_build_object('effect_id', a.effect_id, 'attempt_id', a.attempt_id),
      jsonb_build_object('tool', e.tool, 'attempt', a.attempt)`,
    from: 'holdfast.attempts a join holdfast.effects e using (effect_id) where a.run_id = r.run_id',
  },
  {
    rank: 51,
    columns: `c.recorded_at, c.effect_id, 'receipt_' || c.status, coalesce(s.actor_id, a.worker, 'holdfast:ledger'),
      c.target_status, jsonb_strip_nulls(jsonb_build_object('effect_id', c.effect_id, 'attempt_id', c.attempt_id,
        'reference', c.reference, 'body_sha256', c.body_sha256)), jsonb_build_object('tool', e.tool, 'source', c.source)`,
    from: `holdfast.receipts c join holdfast.effects e using (effect_id) left join holdfast.reconciliations s using (effect_id)
      left join holdfast.attempts a on a.attempt_id = c.attempt_id where c.run_id = r.run_id`,
  },
  {
    // What succeeded or was rejected is told by its receipt.
    rank: 52,
    columns: `a.ended_at, a.attempt_id, 'attempt_' || a.outcome, case a.outcome when 'lost' then 'holdfast:ledger' else a.worker end,
      a.reason, jsonb_build_object('effect_id', a.effect_id, 'attempt_id', a.attempt_id),
      jsonb_build_object('tool', e.tool, 'attempt', a.attempt)`,
    from: `holdfast.attempts a join holdfast.effects e using (effect_id)
     where a.run_id = r.run_id and a.outcome not in ('succeeded', 'rejected')`,
  },
  {
    rank: 53,
    columns: `l.recorded_at, l.attempt_id, 'late_receipt', a.worker, l.outcome,
      jsonb_strip_nulls(jsonb_build_object('effect_id', l.effect_id, 'attempt_id', l.attempt_id, 'reference', l.reference)),
      jsonb_build_object('tool', e.tool)`,
    from: `holdfast.late_receipts l join holdfast.effects e using (effect_id)
      join holdfast.attempts a on a.attempt_id = l.attempt_id where l.run_id = r.run_id`,
  },
  {
    rank: 54,
    columns: `q.asked_at, q.effect_id || lpad(q.query::text, 6, '0'), 'target_asked', 'holdfast:ledger', q.reason,
      jsonb_strip_nulls(jsonb_build_object('effect_id', q.effect_id, 'reference', q.reference)),
      jsonb_build_object('tool', e.tool, 'answer', q.answer, 'counts', q.counts)`,
    from: 'holdfast.status_queries q join holdfast.effects e using (effect_id) where q.run_id = r.run_id',
  },
  {
    rank: 55,
    columns: `s.decided_at, s.effect_id, 'reconciled', s.actor_id, s.note, jsonb_build_object('effect_id', s.effect_id),
      jsonb_build_object('tool', e.tool, 'decided', s.decided, 'source', s.source)`,
    from: 'holdfast.reconciliations s join holdfast.effects e using (effect_id) where s.run_id = r.run_id',
  },
  {
    rank: 56,
    columns: `e.settled_at, e.effect_id, case when e.reuses is null then 'not_dispatched' else 'answered_from_receipt' end,
      'holdfast:ledger', e.state, jsonb_strip_nulls(jsonb_build_object('effect_id', e.effect_id, 'reuses', e.reuses)),
      jsonb_build_object('tool', e.tool)`,
    from: `holdfast.effects e where e.run_id = r.run_id and e.state in ('denied', 'withdrawn', 'superseded')`,
  },
  {
    rank: 60,
    columns: `y.created_at, lpad(y.trail_seq::text, 12, '0'), 'retry_' || y.action, 'holdfast:workflow', y.reason,
      jsonb_strip_nulls(jsonb_build_object('effect_id', y.effect_id)),
      jsonb_build_object('attempt', y.attempt, 'attempts_max', y.attempts_max)`,
    from: 'holdfast.retries y where y.run_id = r.run_id',
  },
];

const UNION = SOURCES.map(
  ({ rank, columns, from }) =>
    `select r.run_id as of_run, s.* from r cross join lateral (
       select ${columns.replace(/\s+/g, ' ')}, ${rank} from ${from}) as s (at, ref, kind, actor, reason, ids, data, rank)`,
).join('\n    union all\n    ');

const MICROSECONDS = `'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'`;

// What became of each effect, from its receipt, its reconciliation and its attempts; never from its own state.
const OUTCOMES = `
    select e.effect_id, e.tool, e.effect_class, e.state, e.turn, e.step, e.slot, e.redo, c.reference,
           e.reconciliation_owner as owner, e.reconciliation_deadline_at as deadline_at,
           coalesce(s.actor_id, a.worker) as actor,
           case when c.status in ('succeeded', 'committed') then 'happened'
                when c.status in ('rejected', 'not_committed') or s.decided = 'not_committed' then 'did_not_happen'
                when exists (select from holdfast.attempts d where d.effect_id = e.effect_id
                              and (d.outcome is null or d.outcome in ('unknown', 'lost', 'in_progress'))) then 'unknown'
                else 'never_sent' end as outcome
      from r join holdfast.effects e using (run_id) left join holdfast.receipts c using (effect_id)
      left join holdfast.reconciliations s using (effect_id)
      left join holdfast.attempts a on a.attempt_id = c.attempt_id`;

/**
 * One statement, so one snapshot: a page of entries after the place ($3, $4, $5), who did how much of what, what became of
 * each effect, and the last move of the run. Parameters: run, tenant, place, limit.
 */
export const READ_STORY = {
  name: 'reads/story',
  text: `
    with r as (select run_id, agent, rolled_back_by from holdfast.runs where run_id = $1 and tenant_id = $2),
    entries as materialized (${UNION}),
    outcomes as materialized (${OUTCOMES})
    select
      (select coalesce(jsonb_agg(to_jsonb(p) - 'of_run' order by p.at, p.rank, p.ref), '[]') from (
         select to_char(at at time zone 'UTC', ${MICROSECONDS}) as at, rank, ref, kind, actor, reason, ids, data
           from entries
          where ($3::timestamptz is null or (entries.at, entries.rank, entries.ref) > ($3, $4, $5))
          order by entries.at, entries.rank, entries.ref limit $6) p) as entries,
      (select count(*)::int from entries) as total,
      (select coalesce(jsonb_agg(to_jsonb(w) order by w.first_at, w.actor), '[]') from (
         select actor, to_char(min(at) at time zone 'UTC', ${MICROSECONDS}) as first_at,
                jsonb_object_agg(kind, count) as did
           from (select actor, kind, min(at) as at, count(*) as count from entries group by actor, kind) k
          group by actor) w) as actors,
      (select coalesce(jsonb_object_agg(outcome, count), '{}') from (
         select outcome, count(*) from outcomes where effect_class <> 'read' group by outcome) c) as counts,
      (select count(*)::int from outcomes where effect_class = 'read') as reads,
      (select coalesce(jsonb_agg(to_jsonb(o) order by o.turn, o.step, o.slot, o.redo), '[]') from (
         select * from (select *, row_number() over (partition by outcome order by turn, step, slot, redo) as place
                          from outcomes where effect_class <> 'read') n
          where place <= ${STORY_EFFECTS_MAX}) o) as effects,
      (select coalesce(jsonb_agg(jsonb_build_object('effect_id', effect_id, 'state', state, 'outcome', outcome)), '[]') from (
         select * from outcomes where outcome <> case
           when state in ('succeeded', 'committed') then 'happened'
           when state in ('rejected', 'not_committed') then 'did_not_happen'
           when state in ('dispatching', 'unknown') then 'unknown' else 'never_sent' end
         limit 100) d) as disagreements,
      (select jsonb_build_object('state', to_state, 'reason', reason, 'actor_id', actor_id, 'asked_by', (
                select c.actor_id from holdfast.commands c where c.run_id = r.run_id and c.kind = 'cancel' and c.fate = 'applied'
                  and to_state = 'cancelled' order by c.created_at limit 1),
                'at', to_char(created_at at time zone 'UTC', ${MICROSECONDS}))
         from holdfast.transitions t where t.run_id = r.run_id and t.region = 'run' order by seq desc limit 1) as last_move
      from r`,
};
