-- One list of everybody who is waited for (SPEC 4): what a person must settle is an interrupt like every other wait. The
-- wait stands exactly while the reconciliation desk shows its effect: nobody knows whether it happened and the run rests
-- over it, or it happened and no tool undoes it. Its answer is a settlement, by the function that the desk calls too.

alter table holdfast.interrupts
  -- Who must see to it; where a role alone says who may, nobody is named.
  add column owner holdfast.actor,
  drop constraint effect_by_kind;
alter table holdfast.interrupts
  add constraint effect_by_kind check (case when kind in ('approval', 'reconciliation') then effect_id is not null
                                            when kind in ('input', 'budget') then effect_id is null else true end),
  add constraint reconciliation_states check (kind <> 'reconciliation' or state in ('open', 'answered', 'withdrawn')),
  -- Its time never settles it: past that, somebody is told (escalate_overdue), and it waits still.
  add constraint escalates_iff_reconciliation check ((kind = 'reconciliation') = (on_expiry = 'escalate')),
  add constraint owner_iff_reconciliation check ((kind = 'reconciliation') = (owner is not null));

-- What a person is asked of an effect, as RFC 8785 text: the arguments stand in it as they are stored, which is that
-- form already; the names around them are in its order.
create function holdfast.settlement_scope(r holdfast.runs, e holdfast.effects, p_asks text, p_why text) returns text
language sql immutable as $$
  select '{"agent":' || to_jsonb(r.agent)::text || ',"agent_version":' || to_jsonb(r.agent_version)::text
    || ',"arguments":' || e.arguments || ',' || substr(holdfast.canonical_json(jsonb_strip_nulls(jsonb_build_object(
      'arguments_sha256', e.arguments_sha256, 'asks', p_asks, 'effect_class', e.effect_class, 'effect_id', e.effect_id,
      'idempotency_key', e.idempotency_key, 'run_id', e.run_id, 'target', e.namespace, 'tenant_id', e.tenant_id,
      'tool', e.tool, 'tool_version', e.tool_version, 'why', p_why))), 2)
$$;

-- The words that answer it, as POST /v1/reconciliations/{effect_id}/settle takes them.
create function holdfast.settlement_schema(e holdfast.effects, p_asks text) returns jsonb language sql immutable as $$
  select jsonb_build_object('oneOf', jsonb_agg(jsonb_build_object(
      'type', 'object', 'additionalProperties', false,
      'required', case when named then '["decided", "reference", "note"]'::jsonb else '["decided", "note"]' end,
      'properties', jsonb_build_object('decided', jsonb_build_object('const', word),
          'note', '{"type": "string", "minLength": 1, "maxLength": 4000, "pattern": "\\S"}'::jsonb)
        || case when named then '{"reference": {"type": "string", "minLength": 1, "maxLength": 1000, "pattern": "\\S"}}'::jsonb
                else '{}' end) order by n))
    from (values (1, 'outcome', 'committed', true), (2, 'outcome', 'not_committed', false),
                 (3, 'outcome', 'compensated', true), (4, 'undo', 'compensated', true), (5, 'undo', 'left', false))
      as words (n, asks, word, named)
   where asks = p_asks and (word <> 'compensated' or e.compensates is null)
$$;

-- Opens the wait over one effect, once. `p_asks`: `outcome` or `undo`.
create function holdfast.open_settlement(
  r holdfast.runs, e holdfast.effects, p_asks text, p_owner text, p_deadline timestamptz, p_why text default null)
returns holdfast.runs language plpgsql as $$
declare
  i holdfast.interrupts;
  v_scope constant text := holdfast.settlement_scope(r, e, p_asks, p_why);
begin
  insert into holdfast.interrupts (interrupt_id, kind, tenant_id, run_id, turn, step, slot, effect_id, requested_by, owner,
      scope, scope_sha256, answer_schema, required_role, quorum, expires_at, on_expiry)
    values (holdfast.new_interrupt_id(), 'reconciliation', e.tenant_id, e.run_id, e.turn, e.step, e.slot, e.effect_id,
      e.requested_by, p_owner, v_scope::jsonb, encode(sha256(convert_to(v_scope, 'UTF8')), 'hex'),
      holdfast.settlement_schema(e, p_asks), 'operator',
      1 + coalesce(r.contract #> '{reconciliation,two_people}' ? e.effect_class, false)::int, p_deadline, 'escalate')
    on conflict do nothing returning * into i;
  if i.interrupt_id is null then return r; end if;
  return holdfast.append_event(r, 'interrupt.opened', jsonb_build_object(
    'interrupt_id', i.interrupt_id, 'kind', i.kind, 'asks', p_asks, 'effect_id', e.effect_id, 'tool', e.tool,
    'turn', e.turn, 'step', e.step, 'slot', e.slot, 'scope_sha256', i.scope_sha256, 'expires_at', i.expires_at));
end $$;

-- The waits over everything whose outcome is unknown, for a run that rests over it.
create function holdfast.open_doubts(r holdfast.runs) returns holdfast.runs language plpgsql as $$
declare
  e holdfast.effects;
begin
  for e in select * from holdfast.effects where run_id = r.run_id and state = 'unknown' order by effect_id loop
    r := holdfast.open_settlement(r, e, 'outcome', e.reconciliation_owner, e.reconciliation_deadline_at);
  end loop;
  return r;
end $$;

-- Ends the wait over one effect, if there is one: `answered` by the person `p_actor`, else `withdrawn`, since evidence
-- or the class has settled it.
create function holdfast.close_settlement(r holdfast.runs, p_effect text, p_source text, p_actor text)
returns holdfast.runs language plpgsql as $$
declare
  i holdfast.interrupts;
begin
  update holdfast.interrupts set state = case p_source when 'person' then 'answered' else 'withdrawn' end,
         decided_at = clock_timestamp()
   where effect_id = p_effect and kind = 'reconciliation' and state = 'open' returning * into i;
  if not found then return r; end if;
  return holdfast.append_event(r, case i.state when 'answered' then 'interrupt.decided' else 'interrupt.withdrawn' end,
    jsonb_build_object('interrupt_id', i.interrupt_id, 'kind', i.kind, 'effect_id', p_effect, 'state', i.state)
    || case i.state when 'answered' then jsonb_build_object('decision', 'answer', 'actor_id', holdfast.canonical_actor(p_actor))
         else jsonb_build_object('reason', p_source) end);
end $$;

-- A run that goes on looks after what is unknown by itself again: nobody is asked whether it happened.
create function holdfast.withdraw_doubts(r holdfast.runs) returns holdfast.runs language plpgsql as $$
declare
  e holdfast.effects;
begin
  for e in select * from holdfast.effects where run_id = r.run_id and state = 'unknown' order by effect_id loop
    r := holdfast.close_settlement(r, e.effect_id, 'run_goes_on', null);
  end loop;
  return r;
end $$;

create index settlement_words_by_interrupt on holdfast.settlement_words (interrupt_id);

revoke execute on all functions in schema holdfast from public;
