import type { LedgerView } from './ledger-view.js';
import type { TargetLogEntry } from './http-target.js';

/**
 * The invariants of the seam (I01–I12 and I18), each a statement that must find nothing. `world` is the target's own
 * log, which nobody of ours wrote; every logical effect of a class has arguments of its own. Times are compared in
 * milliseconds, as the log writes them.
 */
const CHECKS: Readonly<Record<string, string>> = {
  'I01 one intent a key':
    'select namespace, idempotency_key from holdfast.effects group by 1, 2 having count(*) > 1',
  'I01 one first intent a call': `
    select run_id, turn, step, slot from holdfast.effects where supersedes is null
     group by 1, 2, 3, 4 having count(*) > 1`,
  'I14 what is undone had happened': `
    select c.effect_id, e.state from holdfast.effects c join holdfast.effects e on e.effect_id = c.compensates
     where e.state not in ('succeeded', 'committed') or e.run_id <> c.run_id or e.effect_class = 'read'`,
  'I12 a compensated run left nothing undone': `
    select r.run_id, e.effect_id from holdfast.runs r join holdfast.effects e using (run_id)
     where r.state = 'compensated' and e.compensates is null and e.effect_class <> 'read'
       and e.state in ('succeeded', 'committed')
       and not exists (select from holdfast.undos u where u.effect_id = e.effect_id and u.state = 'compensated')
       and not exists (select from holdfast.effects c where c.compensates = e.effect_id
                          and c.state in ('succeeded', 'committed'))`,
  'I02 a keyed effect is applied once': `select key from world where applied and class = 'keyed' group by 1 having count(*) > 1`,
  'I02 a logical effect is applied once under all its keys':
    // What undoes something is another logical effect, though it may take the same arguments.
    `select class, args from world where applied group by 1, 2, key like '%:undo%' having count(*) > 1`,
  'I03 one request a key where the target keeps none': `
    select key from world where not applied and class in ('queryable', 'opaque') group by 1 having count(*) > 1`,
  'I03 one dispatch where the target keeps no key': `
    select effect_id from holdfast.attempts join holdfast.effects using (effect_id)
     where effect_class in ('queryable', 'opaque') and coalesce(outcome, '') not in ('not_sent', 'throttled')
     group by 1 having count(*) > 1`,
  'I03 a redo supersedes what was not committed, an edit what never left': `
    select e.effect_id, o.state from holdfast.effects e join holdfast.effects o on o.effect_id = e.supersedes
     where not (o.state = 'not_committed' or o.state = 'superseded' and o.attempts = 0)`,
  'I04 a receipt says what its effect says': `
    select r.effect_id, r.status, e.state from holdfast.receipts r join holdfast.effects e using (effect_id)
     where r.status <> e.state or r.tenant_id <> e.tenant_id or r.run_id <> e.run_id`,
  'I04 a settled dispatch has its receipt': `
    select e.effect_id, e.state from holdfast.effects e left join holdfast.receipts r using (effect_id)
     where r.effect_id is null and (e.state in ('succeeded', 'rejected', 'committed')
       or (e.state = 'not_committed' and e.effect_class <> 'read'))`,
  'I05 nothing arrives without an earlier dispatch': `
    select w.key from world w left join holdfast.effects e on e.idempotency_key = w.key
     where e.first_dispatched_at is null or date_trunc('milliseconds', e.first_dispatched_at) > w.at`,
  'I06 what the ledger says was done was done': `
    select e.idempotency_key, e.state from holdfast.effects e
     where e.state in ('succeeded', 'committed') and e.effect_class <> 'read'
       and not exists (select from world w where w.key = e.idempotency_key and w.applied)`,
  'I06 what the ledger says was not done was not done': `
    select e.idempotency_key, e.state from holdfast.effects e
     where e.state in ('intended', 'rejected', 'not_committed', 'denied', 'withdrawn', 'superseded')
       and exists (select from world w where w.key = e.idempotency_key and w.applied)`,
  'I07 transitions are gapless': `
    select run_id from holdfast.transitions group by 1 having min(seq) <> 1 or max(seq) <> count(*)`,
  'I07 events are gapless':
    'select run_id from holdfast.run_events group by 1 having min(seq) <> 1 or max(seq) <> count(*)',
  'I09 a transition starts where the last one ended': `
    select run_id, seq from (
      select *, lag(to_state) over w as before, lag(epoch) over w as epoch_before from holdfast.transitions
       window w as (partition by run_id, region order by seq)) t
     where (region = 'run' or before is not null) and from_state is distinct from before or epoch < epoch_before`,
  'I10 an end is the end': `
    select b.run_id, b.seq from holdfast.transitions a join holdfast.transitions b
        on a.run_id = b.run_id and b.seq > a.seq and b.region = 'run'
     where a.region = 'run' and a.to_state in ('completed', 'compensated', 'failed', 'cancelled')`,
  'I11 the run is where its last transition led': `
    select r.run_id, r.state, t.to_state from holdfast.runs r
      join lateral (select to_state from holdfast.transitions t
                     where t.run_id = r.run_id and region = 'run' order by seq desc limit 1) t on true
     where t.to_state <> r.state`,
  'I12 no run ends over an open effect': `
    select r.run_id, e.state from holdfast.runs r join holdfast.effects e using (run_id)
     where r.ended_at is not null and e.state in ('intended', 'dispatching', 'unknown')`,
  'I13 nothing is applied after the end': `
    select w.key from world w join holdfast.effects e on e.idempotency_key = w.key
      join holdfast.runs r using (run_id) where w.applied and w.at > r.ended_at`,
  'I18 an unclear effect keeps its run in reconciliation, under an owner and a deadline': `
    select e.effect_id, e.state, r.state from holdfast.effects e join holdfast.runs r using (run_id)
     where e.state = 'dispatching' or (e.state = 'unknown' and (r.state not in ('needs_reconciliation', 'reconciling')
       or e.reconciliation_owner is null or e.reconciliation_deadline_at is null))`,
  'I18 who is to settle something is waited for in the one list, and nobody else': `
    select coalesce(d.effect_id, i.effect_id), i.interrupt_id from (
        select e.effect_id from holdfast.effects e join holdfast.runs r using (run_id)
         where e.state = 'unknown' and r.state in ('needs_reconciliation', 'reconciling')
        union all select effect_id from holdfast.undos where state = 'waiting') d
      full join (select * from holdfast.interrupts where kind = 'reconciliation' and state = 'open') i using (effect_id)
     where d.effect_id is null or i.effect_id is null`,
  'I18 a settlement has evidence and actor': `
    select e.effect_id, e.state from holdfast.effects e left join holdfast.reconciliations c using (effect_id)
     where e.state in ('committed', 'not_committed')
       and (c.effect_id is null or c.actor_id = ''
         or case c.decided when 'compensated' then 'committed' else c.decided end <> e.state
         or (c.source <> 'class' and c.evidence = '{}'::jsonb))`,
  'the spend of a run is the spend of its attempts': `
    select r.run_id, r.input_tokens, r.output_tokens from holdfast.runs r
      left join lateral (select coalesce(sum(input_tokens), 0) as i, coalesce(sum(output_tokens), 0) as o
                           from holdfast.model_attempts a where a.run_id = r.run_id) s on true
     where (r.input_tokens, r.output_tokens) is distinct from (s.i, s.o)`,
};

/**
 * Compares a ledger whose runs are at rest with what its target saw.
 *
 * @returns one line for each row that breaks an invariant; none when all hold
 */
export async function judge(ledger: LedgerView, log: readonly TargetLogEntry[]): Promise<string[]> {
  const world = `with world as (
    select (w ->> 'at')::timestamptz as at, w ->> 'key' as key, w ->> 'class' as class,
           w ->> 'kind' = 'applied' as applied, w ->> 'argsDigest' as args
      from jsonb_array_elements($1::jsonb) as w)`;
  const entries = JSON.stringify(log.map(({ body: _body, ...entry }) => entry));
  const broken: string[] = [];
  for (const [name, check] of Object.entries(CHECKS)) {
    const rows = await ledger.rows(
      `${world} select * from (${check}) as broken, (select $1::jsonb is null)`,
      entries,
    );
    broken.push(...rows.map((row) => `${name}: ${JSON.stringify(row)}`));
  }
  return broken;
}
