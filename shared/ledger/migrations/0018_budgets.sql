-- Budgets (SPEC 4.3): what a run, or a whole tenant, may spend. The worst case of a call is reserved in its claim and
-- settled with its outcome, in the same transaction, under the run's lock. Lock order: the run, its children, a cool-down,
-- then its lines and its tenant's, by budget_id. A run that meets no line pays one look at an index.

create domain holdfast.budget_kind as text check (value in (
  'tokens', 'cost', 'steps', 'tool_calls', 'effect_count', 'effect_sum'));
create domain holdfast.limit_code as text check (value in (
  'limit_steps', 'limit_tool_calls', 'limit_wall_clock', 'limit_tokens', 'limit_cost', 'limit_effects'));
-- Neither negative nor NaN nor infinite.
create domain holdfast.quantity as numeric check (value >= 0 and value < 1e30);

-- The limits in force: the contract's at first, changed by commands. A tree of runs has one root and shares its lines.
alter table holdfast.runs
  add column root_run_id text references holdfast.runs,
  add column steps_max integer,
  add column tool_calls_max integer,
  -- Something was reserved for it: only then has a settlement anything to look for.
  add column budgeted boolean not null default false,
  -- The limit after which nothing more is called but the model, once.
  add column finishing holdfast.limit_code,
  -- The step of that last answer.
  add column last_step integer,
  add constraint last_step_needs_a_limit check (last_step is null or finishing is not null);
update holdfast.runs set root_run_id = run_id, steps_max = (contract #>> '{limits,steps_max}')::int,
       tool_calls_max = (contract #>> '{limits,tool_calls_max}')::int;
alter table holdfast.runs
  alter column root_run_id set not null, alter column steps_max set not null, alter column tool_calls_max set not null;

-- One limit with what counts against it.
create table holdfast.budgets (
  tenant_id   holdfast.name        not null,
  budget_id   bigint               generated always as identity primary key,
  -- Null: of the whole tenant.
  root_run_id text                 references holdfast.runs,
  owner       text                 not null,
  kind        holdfast.budget_kind not null,
  -- The tool of an effect quantity, the currency of a cost.
  subject     holdfast.text_200    not null default '',
  -- Where in the arguments the number stands that is summed: an RFC 6901 pointer.
  pointer     holdfast.text_200    not null default '',
  -- Null: counted, and not limited any more.
  limit_value holdfast.quantity,
  used        holdfast.quantity    not null default 0,
  reserved    holdfast.quantity    not null default 0,
  -- By how much the limit was lowered below what stood there, or the truth came to more than the worst case. A
  -- reservation never adds to it.
  over        holdfast.quantity    not null default 0,
  period      text                 not null default 'total' check (period in ('total', 'day')),
  -- The day, in UTC, that the numbers are of.
  day         date,
  -- Raised when the numbers begin anew: what was reserved before settles without them.
  era         integer              not null default 0,
  updated_at  timestamptz          not null default clock_timestamp(),
  unique (owner, kind, subject, pointer),
  constraint owner_is_its_scope check (owner = coalesce(root_run_id, 'tenant:' || tenant_id)),
  constraint never_overshot check (used + reserved <= limit_value + over),
  constraint day_iff_daily check ((period = 'day') = (day is not null)),
  constraint no_days_in_a_run check (root_run_id is null or period = 'total'),
  constraint subject_by_kind check ((kind in ('cost', 'effect_count', 'effect_sum')) = (subject <> '')),
  constraint pointer_by_kind check ((kind = 'effect_sum') = (pointer <> ''))
) with (fillfactor = 50);

-- What one call holds of one line, from its claim to its settlement.
create table holdfast.budget_reservations (
  -- An effect, or one attempt at a model call.
  holder     text              not null,
  budget_id  bigint            not null references holdfast.budgets,
  tenant_id  text              not null,
  run_id     text              not null references holdfast.runs,
  amount     holdfast.quantity not null,
  -- What it came to: all of it, some, more, or nothing where nothing happened.
  used       holdfast.quantity not null default 0,
  era        integer           not null,
  created_at timestamptz       not null default clock_timestamp(),
  settled_at timestamptz,
  primary key (holder, budget_id),
  constraint used_when_settled check (settled_at is not null or used = 0)
) with (fillfactor = 70);
create index budget_reservations_held on holdfast.budget_reservations (run_id) where settled_at is null;

-- Who set a tenant's budget to what: append-only.
create table holdfast.tenant_budget_changes (
  tenant_id       holdfast.name        not null,
  endpoint        text                 not null,
  idempotency_key holdfast.request_key not null,
  request_sha256  holdfast.sha256      not null,
  actor_id        holdfast.actor       not null,
  authority       holdfast.name        not null,
  period          text                 not null check (period in ('total', 'day')),
  lines           jsonb                not null,
  changed_at      timestamptz          not null default clock_timestamp(),
  primary key (tenant_id, endpoint, idempotency_key)
);
create trigger append_only before update or delete on holdfast.tenant_budget_changes
  for each row execute function holdfast.refuse_change();
create trigger no_delete before delete on holdfast.budgets for each row execute function holdfast.refuse_change();
create trigger no_delete before delete on holdfast.budget_reservations
  for each row execute function holdfast.refuse_change();

-- A wait over a budget is one more kind of interrupt; its answer raises the limit or refuses to.
alter table holdfast.interrupts
  drop constraint interrupts_kind_check, drop constraint effect_by_kind, drop constraint slot_unless_input,
  drop constraint input_states, drop constraint input_expiry;
alter table holdfast.interrupts
  add constraint interrupts_kind_check check (kind in ('approval', 'input', 'reconciliation', 'budget')),
  add constraint effect_by_kind check (case when kind = 'approval' then effect_id is not null
                                            when kind in ('input', 'budget') then effect_id is null else true end),
  add constraint slot_unless_input check (kind in ('input', 'budget') or slot is not null),
  add constraint input_states check (
    kind not in ('input', 'budget') or state in ('open', 'answered', 'expired', 'superseded', 'withdrawn')),
  add constraint input_expiry check (
    case kind when 'input' then on_expiry in ('tell_model', 'fail') when 'budget' then on_expiry = 'fail' else true end);
alter table holdfast.commands drop constraint commands_kind_check;
alter table holdfast.commands add constraint commands_kind_check
  check (kind in ('pause', 'resume', 'cancel', 'change_budget', 'change_deadline'));

-- The number at an RFC 6901 pointer of a call's arguments. NaN where there is none that can be summed.
create function holdfast.amount_at(p_arguments text, p_pointer text) returns numeric language sql immutable as $$
  select case when jsonb_typeof(v) = 'number' and v::numeric >= 0 then v::numeric else 'NaN' end
    from (select p_arguments::jsonb #> array(
      select replace(replace(part, '~1', '/'), '~0', '~')
        from unnest(string_to_array(substr(p_pointer, 2), '/')) with ordinality as t (part, n) order by n)) as at (v)
$$;

-- How much of a line an act takes; null or 0 where it does not touch it.
create function holdfast.budget_need(b holdfast.budgets, p_act jsonb) returns numeric language sql immutable as $$
  select case b.kind
    when 'tokens' then (p_act ->> 'tokens')::numeric
    when 'cost' then case when p_act ->> 'currency' = b.subject then (p_act ->> 'cost')::numeric end
    when 'steps' then (p_act ->> 'steps')::numeric
    when 'tool_calls' then (p_act ->> 'tool_calls')::numeric
    when 'effect_count' then case when p_act ->> 'tool' = b.subject then 1 end
    when 'effect_sum' then case when p_act ->> 'tool' = b.subject
      then holdfast.amount_at(p_act ->> 'arguments', b.pointer) end
  end
$$;

-- What so many tokens are of the run's model: prices are micro-units a million tokens.
create function holdfast.model_spend(r holdfast.runs, p_input numeric, p_output numeric) returns jsonb
language sql stable as $$
  select jsonb_build_object('tokens', p_input + p_output, 'currency', manifest #>> '{model,price,currency}',
    'cost', ceil((p_input * (manifest #>> '{model,price,inputPerMillion}')::numeric
                + p_output * (manifest #>> '{model,price,outputPerMillion}')::numeric) / 1000000))
    from holdfast.agent_versions where agent = r.agent and agent_version = r.agent_version
$$;

-- The worst case of the next model call. No tokenizer makes more tokens than bytes: what the provider counted last
-- stands for the prompt up to there, and bytes for all that came since, plus what a provider wraps around.
create function holdfast.model_worst_case(r holdfast.runs) returns jsonb language plpgsql stable as $$
declare
  v_manifest jsonb;
  v_step integer;
  v_input numeric;
begin
  select manifest into v_manifest from holdfast.agent_versions
   where agent = r.agent and agent_version = r.agent_version;
  select step, input_tokens into v_step, v_input from holdfast.model_attempts
   where run_id = r.run_id and outcome = 'answered' and input_tokens > 0 order by turn desc, step desc limit 1;
  if not found then
    v_input := octet_length(v_manifest ->> 'instructions') + coalesce((
      select sum(octet_length(t::text)) from jsonb_array_elements(
        (v_manifest -> 'tools') || coalesce(v_manifest -> 'questions', '[]'::jsonb)) as t), 0);
  end if;
  v_input := v_input + 512 + coalesce((select sum(octet_length(content::text)) from holdfast.messages
    where run_id = r.run_id and (v_step is null or step > v_step or step = v_step and position > 0)), 0);
  if r.thread_id is not null then v_input := v_input + holdfast.thread_adds(r, v_manifest, v_step is not null); end if;
  return holdfast.model_spend(r, v_input, (v_manifest #>> '{model,maxOutputTokens}')::numeric);
end $$;

-- A daily line begins anew with the day.
create function holdfast.roll_budget(b holdfast.budgets) returns holdfast.budgets language plpgsql as $$
declare
  v_today constant date := (clock_timestamp() at time zone 'UTC')::date;
begin
  if b.period = 'day' and b.day < v_today then
    update holdfast.budgets set used = 0, reserved = 0, over = 0, era = era + 1, day = v_today
     where budget_id = b.budget_id returning * into b;
  end if;
  return b;
end $$;

create function holdfast.on_reached(r holdfast.runs) returns text language sql immutable as $$
  select coalesce(r.contract #>> '{budget,on_reached}', 'fail')
$$;

-- Reserves what an act may take at worst from every line that it meets: all, or none and `reached`. What is certain
-- from the start (steps, tool calls) is used at once. Null: it meets no line. `p_act` with `model` is made here, since
-- nobody else needs it. A run that is to finish keeps as much again for its last answer.
create function holdfast.reserve_budget(r holdfast.runs, p_holder text, p_act jsonb) returns jsonb
language plpgsql as $$
declare
  v_owners constant text[] := array[r.root_run_id, 'tenant:' || r.tenant_id];
  v_times constant integer := case when p_act ? 'model' and r.finishing is null and holdfast.on_reached(r) = 'finish'
                                   then 2 else 1 end;
  v_act jsonb;
  v_need numeric;
  b holdfast.budgets;
begin
  for b in select * from holdfast.budgets where owner = any (v_owners) order by budget_id for update loop
    if v_act is null then
      v_act := case when p_act ? 'model' then p_act || holdfast.model_worst_case(r) else p_act end;
    end if;
    v_need := holdfast.budget_need(b, v_act);
    continue when v_need is null or v_need = 0 or b.limit_value is null;
    b := holdfast.roll_budget(b);
    continue when b.used + b.reserved + v_need * case when b.kind in ('tokens', 'cost') then v_times else 1 end
                  <= b.limit_value;
    return jsonb_build_object('kind', case when v_need = 'NaN' then 'uncountable' else 'reached' end,
      'limit', case when b.kind in ('effect_count', 'effect_sum') then 'limit_effects' else 'limit_' || b.kind end,
      'scope', case when b.root_run_id is null then 'tenant' else 'run' end, 'budget_id', b.budget_id,
      'budget', b.kind, 'subject', b.subject, 'pointer', b.pointer, 'limit_value', b.limit_value, 'used', b.used,
      'reserved', b.reserved, 'needed', case when v_need = 'NaN' then 0 else v_need end);
  end loop;
  if v_act is null then return null; end if;
  for b in select * from holdfast.budgets where owner = any (v_owners) order by budget_id loop
    v_need := holdfast.budget_need(b, v_act);
    -- Unlimited, and nothing that could be counted.
    continue when v_need is null or v_need = 0 or v_need = 'NaN';
    b := holdfast.roll_budget(b);
    if b.kind in ('steps', 'tool_calls') then
      update holdfast.budgets set used = used + v_need, updated_at = clock_timestamp() where budget_id = b.budget_id;
    else
      update holdfast.budgets set reserved = reserved + v_need, updated_at = clock_timestamp()
       where budget_id = b.budget_id;
      insert into holdfast.budget_reservations (holder, budget_id, tenant_id, run_id, amount, era)
        values (p_holder, b.budget_id, r.tenant_id, r.run_id, v_need, b.era)
        -- Sent again after proof that nothing was done: what was given back is taken again.
        on conflict (holder, budget_id) do update set amount = excluded.amount, used = 0, era = excluded.era,
          created_at = excluded.created_at, settled_at = null;
    end if;
  end loop;
  return jsonb_build_object('kind', 'reserved');
end $$;

-- Settles what a call holds: `used` all of it, `given_back` none, `spent` what these tokens come to. May come again
-- with a better word: what was taken for lost and then heard of counts what it really came to.
create function holdfast.settle_budget(
  r holdfast.runs, p_holder text, p_how text, p_input numeric default 0, p_output numeric default 0)
returns holdfast.runs language plpgsql as $$
declare
  b holdfast.budgets;
  v holdfast.budget_reservations;
  v_used numeric;
begin
  if not r.budgeted then return r; end if;
  for b in select l.* from holdfast.budgets l join holdfast.budget_reservations h using (budget_id)
            where h.holder = p_holder order by l.budget_id for update of l loop
    select * into v from holdfast.budget_reservations where holder = p_holder and budget_id = b.budget_id;
    v_used := case p_how when 'used' then v.amount when 'given_back' then 0
      else coalesce(holdfast.budget_need(b, holdfast.model_spend(r, p_input, p_output)), 0) end;
    update holdfast.budget_reservations set used = v_used, settled_at = clock_timestamp()
     where holder = p_holder and budget_id = b.budget_id;
    continue when v.era <> b.era;
    b.used := b.used - v.used + v_used;
    b.reserved := b.reserved - case when v.settled_at is null then v.amount else 0 end;
    if b.used + b.reserved > b.limit_value + b.over then
      -- The truth is kept, whatever the limit says.
      b.over := b.used + b.reserved - b.limit_value;
      -- The feed of a run ends with the run.
      if r.ended_at is null then
        r := holdfast.append_event(r, 'budget.overrun', jsonb_build_object('scope',
          case when b.root_run_id is null then 'tenant' else 'run' end, 'budget', b.kind, 'subject', b.subject,
          'limit_value', b.limit_value, 'used', b.used, 'reserved', b.reserved));
      end if;
    end if;
    update holdfast.budgets set used = b.used, reserved = b.reserved, over = b.over, updated_at = clock_timestamp()
     where budget_id = b.budget_id;
  end loop;
  return r;
end $$;

-- At the end of a run nothing stays reserved: of a model call that nobody reports on the worst case counts.
create function holdfast.settle_all_budgets(r holdfast.runs) returns holdfast.runs language plpgsql as $$
declare
  v_holder text;
begin
  for v_holder in select distinct holder from holdfast.budget_reservations
                   where run_id = r.run_id and settled_at is null order by holder loop
    r := holdfast.settle_budget(r, v_holder, 'used');
  end loop;
  return r;
end $$;

-- What an ended attempt at a model call counts: what the provider said. Where an answer may have been made and nobody
-- said what it took, the worst case.
create function holdfast.settle_model_budget(
  r holdfast.runs, p_attempt_id text, p_outcome text, p_reason text, p_input bigint, p_output bigint)
returns holdfast.runs language plpgsql as $$
begin
  if p_input + p_output = 0 and (p_outcome <> 'failed'
       or p_reason in ('timed_out', 'disconnected', 'malformed_response')) then
    return holdfast.settle_budget(r, p_attempt_id, 'used');
  end if;
  return holdfast.settle_budget(r, p_attempt_id, 'spent', p_input, p_output);
end $$;

-- A limit that stands in the run's own row, in the words of a line.
create function holdfast.run_limit(r holdfast.runs, p_kind text) returns jsonb language plpgsql stable as $$
declare
  v_limit numeric := case p_kind when 'steps' then r.steps_max when 'tool_calls' then r.tool_calls_max
    else ceil(extract(epoch from r.deadline_at - r.admitted_at)) end;
  v_held record := holdfast.held_by_children(r.run_id);
  v_used numeric := case p_kind when 'steps' then r.step + v_held.steps
    when 'tool_calls' then r.tool_calls + v_held.tool_calls
    else floor(extract(epoch from clock_timestamp() - r.admitted_at)) end;
begin
  return jsonb_build_object('kind', 'reached', 'limit', 'limit_' || p_kind, 'scope', 'run', 'budget', p_kind,
    'subject', '', 'pointer', '', 'limit_value', v_limit, 'used', v_used, 'reserved', 0, 'needed', 1);
end $$;

-- Tool calls that the run may still make, its children's counted.
create function holdfast.tool_calls_left(r holdfast.runs) returns integer language plpgsql stable as $$
begin
  return r.tool_calls_max - r.tool_calls - (select tool_calls from holdfast.held_by_children(r.run_id));
end $$;

-- Which limit of the run itself the model call of a step meets, or null. A run that is to finish takes the last step
-- that it has for its last answer, and calls the model once more after its last tool call.
create function holdfast.step_limit(r holdfast.runs, p_step integer) returns jsonb language plpgsql stable as $$
declare
  v_finish constant boolean := holdfast.on_reached(r) = 'finish';
  -- What its children hold of its steps and tool calls counts as its own.
  v_held record := holdfast.held_by_children(r.run_id);
  v_steps_max constant integer := r.steps_max - v_held.steps;
begin
  if r.finishing is not null then
    return case when p_step > r.last_step then jsonb_build_object('kind', 'reached', 'limit', r.finishing) end;
  end if;
  return case
    when clock_timestamp() >= r.deadline_at then holdfast.run_limit(r, 'wall_clock')
    when p_step > v_steps_max or v_finish and p_step = v_steps_max then holdfast.run_limit(r, 'steps')
    when v_finish and r.tool_calls > 0 and holdfast.tool_calls_left(r) <= 0 then holdfast.run_limit(r, 'tool_calls')
  end;
end $$;

create function holdfast.newest_budget_wait(p_run text) returns holdfast.interrupts language sql stable as $$
  select * from holdfast.interrupts where run_id = p_run and kind = 'budget' order by created_at desc limit 1
$$;

-- What reaching a limit is to be now, by the contract: `fail`, `finish`, `ask` (opens the wait), or `wait` (it is open).
-- A person who refused, or said nothing in time, has decided: `fail`. The last answer has no other way.
create function holdfast.limit_way(r holdfast.runs) returns text language plpgsql stable as $$
declare
  i holdfast.interrupts;
begin
  if r.finishing is not null or holdfast.on_reached(r) = 'fail' then return 'fail'; end if;
  if holdfast.on_reached(r) = 'finish' then return 'finish'; end if;
  i := holdfast.newest_budget_wait(r.run_id);
  return case
    when i.interrupt_id is null then 'ask'
    when i.state = 'open' then case when clock_timestamp() < i.expires_at then 'wait' else 'fail' end
    when i.state = 'expired' then 'fail'
    when i.state = 'answered' then (select case answer::jsonb ->> 'action' when 'raise' then 'ask' else 'fail' end
      from holdfast.decisions where interrupt_id = i.interrupt_id and decision = 'answer')
    else 'ask' end;
end $$;

-- Goes that way.
create function holdfast.meet_limit(r holdfast.runs, p_way text, p_turn integer, p_step integer, p_reached jsonb)
returns holdfast.runs language plpgsql as $$
declare
  i holdfast.interrupts;
begin
  if p_way = 'wait' then return r; end if;
  r := holdfast.append_event(r, 'budget.reached', (p_reached - 'kind' - 'budget_id')
    || jsonb_build_object('way', p_way, 'turn', p_turn, 'step', p_step));
  if p_way = 'finish' then
    r.finishing := p_reached ->> 'limit';
  elsif p_way = 'ask' then
    r := holdfast.open_budget_wait(r, p_turn, p_step, p_reached);
  else
    i := holdfast.newest_budget_wait(r.run_id);
    if i.state = 'open' then r := holdfast.expire_input(r, i); end if;
  end if;
  return r;
end $$;

create function holdfast.limit_answer(p_way text, p_reached jsonb) returns jsonb language sql immutable as $$
  select jsonb_build_object('kind', 'limit', 'limit', p_reached -> 'limit',
                            'way', case p_way when 'wait' then 'ask' else p_way end)
$$;

-- RFC 8785 text of JSON whose member names are ASCII and whose numbers are whole or of few digits: what the ledger itself
-- makes (a scope, a child's contract).
create function holdfast.canonical_json(p jsonb) returns text language sql immutable as $$
  select case jsonb_typeof(p)
    when 'object' then '{' || coalesce((
      select string_agg(to_jsonb(key)::text || ':' || holdfast.canonical_json(value), ',' order by key collate "C")
        from jsonb_each(p)), '') || '}'
    when 'array' then '[' || coalesce((
      select string_agg(holdfast.canonical_json(value), ',' order by n)
        from jsonb_array_elements(p) with ordinality as t (value, n)), '') || ']'
    when 'number' then trim_scale(p::numeric)::text
    else p::text end
$$;

create function holdfast.canonical_sha256(p jsonb) returns text language sql immutable as $$
  select encode(sha256(convert_to(holdfast.canonical_json(p), 'UTF8')), 'hex')
$$;

-- An interrupt's id where the ledger itself opens it: sortable by time like every other (UUIDv7).
create function holdfast.new_interrupt_id() returns text language sql volatile as $$
  select 'int_' || lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
    || '7' || substr(u, 1, 3) || '8' || substr(u, 4, 15)
    from (select replace(gen_random_uuid()::text, '-', '') as u) t
$$;

-- Opens the wait for a person who raises the limit or refuses. What they are shown is made of the line alone. A tenant's
-- limit is an admin's to raise.
create function holdfast.open_budget_wait(r holdfast.runs, p_turn integer, p_step integer, p_reached jsonb)
returns holdfast.runs language plpgsql as $$
declare
  v_id constant text := holdfast.new_interrupt_id();
  v_arguments constant jsonb := p_reached - 'kind' - 'budget_id';
  v_scope jsonb;
  v_expires constant timestamptz := clock_timestamp()
    + make_interval(secs => (r.contract #>> '{timeouts,input_seconds}')::int);
begin
  v_scope := jsonb_build_object('asks', 'budget', 'tenant_id', r.tenant_id, 'run_id', r.run_id, 'agent', r.agent,
    'agent_version', r.agent_version, 'tool', 'budget/' || (p_reached ->> 'budget'), 'tool_version', r.agent_version,
    'arguments', v_arguments, 'arguments_sha256', holdfast.canonical_sha256(v_arguments));
  insert into holdfast.interrupts (interrupt_id, kind, tenant_id, run_id, turn, step, requested_by, scope,
      scope_sha256, answer_schema, required_role, expires_at, on_expiry)
    values (v_id, 'budget', r.tenant_id, r.run_id, p_turn, p_step, r.actor_id, v_scope,
      holdfast.canonical_sha256(v_scope), jsonb_build_object('oneOf', jsonb_build_array(
        jsonb_build_object('type', 'object', 'additionalProperties', false, 'required', '["action", "limit"]'::jsonb,
          'properties', jsonb_build_object('action', '{"const": "raise"}'::jsonb, 'limit', jsonb_build_object(
            'type', 'number', 'maximum', holdfast.limit_ceiling(p_reached ->> 'budget'), 'minimum',
            (p_reached ->> 'used')::numeric + (p_reached ->> 'reserved')::numeric + (p_reached ->> 'needed')::numeric))),
        '{"type": "object", "additionalProperties": false, "required": ["action"],
          "properties": {"action": {"const": "refuse"}}}'::jsonb)),
      case p_reached ->> 'scope' when 'tenant' then 'admin' else 'operator' end, v_expires, 'fail');
  return holdfast.append_event(r, 'interrupt.opened', jsonb_build_object(
    'interrupt_id', v_id, 'kind', 'budget', 'tool', v_scope ->> 'tool', 'turn', p_turn, 'step', p_step,
    'scope_sha256', holdfast.canonical_sha256(v_scope), 'expires_at', v_expires));
end $$;

-- The highest limit that anybody may set; shared/domain/budgets.ts has the same.
create function holdfast.limit_ceiling(p_kind text) returns numeric language sql immutable as $$
  select case p_kind when 'steps' then 10000 when 'tool_calls' then 100000 when 'wall_clock' then 31622400
                     else 1000000000000000 end
$$;

-- Sets the limit of one line of a run or of its tenant, raised or lowered; what stands there is never rewritten.
create function holdfast.set_limit(p_budget_id bigint, p_limit numeric) returns void language sql as $$
  update holdfast.budgets set limit_value = p_limit, over = greatest(0, coalesce(used + reserved - p_limit, 0)),
         updated_at = clock_timestamp()
   where budget_id = p_budget_id
$$;

-- A person's answer to a wait over a budget, in the transaction that takes it.
create function holdfast.take_budget_answer(r holdfast.runs, i holdfast.interrupts, p_answer jsonb)
returns holdfast.runs language plpgsql as $$
declare
  a constant jsonb := i.scope -> 'arguments';
  v_limit constant numeric := (p_answer ->> 'limit')::numeric;
  b holdfast.budgets;
begin
  if p_answer ->> 'action' <> 'raise' then return r; end if;
  case a ->> 'budget'
    when 'wall_clock' then
      r.deadline_at := greatest(r.deadline_at, r.admitted_at + make_interval(secs => v_limit::float8));
    else
      if a ->> 'scope' = 'run' and a ->> 'budget' = 'steps' then
        r.steps_max := greatest(r.steps_max, ceil(v_limit)::int);
      elsif a ->> 'scope' = 'run' and a ->> 'budget' = 'tool_calls' then
        r.tool_calls_max := greatest(r.tool_calls_max, ceil(v_limit)::int);
      else
        select * into b from holdfast.budgets
         where owner = case a ->> 'scope' when 'run' then r.root_run_id else 'tenant:' || r.tenant_id end
           and kind = a ->> 'budget' and subject = a ->> 'subject' and pointer = a ->> 'pointer' for update;
        -- Somebody may have raised it further meanwhile.
        perform holdfast.set_limit(b.budget_id, greatest(b.limit_value, v_limit));
      end if;
  end case;
  return holdfast.append_event(r, 'budget.changed', (a - 'needed' - 'limit')
    || jsonb_build_object('limit_value', v_limit, 'interrupt_id', i.interrupt_id));
end $$;

-- What was asked about has changed: the open wait over a budget is over, and the claim looks again.
create function holdfast.supersede_budget_wait(r holdfast.runs) returns holdfast.runs language plpgsql as $$
declare
  i holdfast.interrupts;
begin
  for i in update holdfast.interrupts set state = 'superseded', decided_at = clock_timestamp()
            where run_id = r.run_id and kind = 'budget' and state = 'open' returning * loop
    r := holdfast.append_event(r, 'interrupt.superseded', jsonb_build_object(
      'interrupt_id', i.interrupt_id, 'kind', 'budget'));
    perform pg_notify('holdfast_nudge', r.run_id);
  end loop;
  return r;
end $$;

-- The command `change_budget`: the first of its lines that the run neither has nor could count, or null: a cost in another
-- currency than its model's, an effect of a tool that its agent does not have.
create function holdfast.missing_line(r holdfast.runs, p_lines jsonb) returns jsonb language sql stable as $$
  select l from jsonb_array_elements(p_lines) as l, holdfast.agent_versions v
   where v.agent = r.agent and v.agent_version = r.agent_version
     and case when l ->> 'kind' = 'cost' then v.manifest #>> '{model,price,currency}' is distinct from l ->> 'subject'
              when l ->> 'kind' in ('effect_count', 'effect_sum') then not exists (
                select from jsonb_array_elements(v.manifest -> 'tools') as t where t ->> 'name' = l ->> 'subject')
              else false end
     and not exists (
     select from holdfast.budgets b where b.owner = r.root_run_id and b.kind = l ->> 'kind'
        and b.subject = l ->> 'subject' and b.pointer = l ->> 'pointer') limit 1
$$;

-- Carries out `change_budget` or `change_deadline`, at once, under the run's lock.
create function holdfast.change_run(r holdfast.runs, p_kind text, p_payload jsonb) returns holdfast.runs
language plpgsql as $$
declare
  l jsonb;
  b holdfast.budgets;
begin
  if p_kind = 'change_deadline' then
    r := holdfast.append_event(r, 'deadline.changed', jsonb_build_object(
      'from', r.deadline_at, 'to', p_payload ->> 'deadline_at'));
    r.deadline_at := (p_payload ->> 'deadline_at')::timestamptz;
  end if;
  -- A limit that was not there counts from now on: what was used before it, and what is in flight, is not counted.
  if p_kind = 'change_budget' then
    insert into holdfast.budgets (tenant_id, root_run_id, owner, kind, subject, pointer)
      select r.tenant_id, r.root_run_id, r.root_run_id, line ->> 'kind', line ->> 'subject', line ->> 'pointer'
        from jsonb_array_elements(p_payload -> 'lines') with ordinality as t (line, n)
       where line ->> 'kind' not in ('steps', 'tool_calls') order by n
      on conflict (owner, kind, subject, pointer) do nothing;
  end if;
  for b in select * from holdfast.budgets where p_kind = 'change_budget' and owner = r.root_run_id
            order by budget_id for update loop
    select line into l from jsonb_array_elements(p_payload -> 'lines') as line
     where line ->> 'kind' = b.kind and line ->> 'subject' = b.subject and line ->> 'pointer' = b.pointer;
    continue when not found;
    perform holdfast.set_limit(b.budget_id, (l ->> 'limit')::numeric);
    r := holdfast.append_event(r, 'budget.changed', jsonb_build_object('scope', 'run', 'budget', b.kind,
      'subject', b.subject, 'pointer', b.pointer, 'from', b.limit_value, 'limit_value', (l ->> 'limit')::numeric,
      'used', b.used, 'reserved', b.reserved));
  end loop;
  for l in select line from jsonb_array_elements(p_payload -> 'lines') as line
            where p_kind = 'change_budget' and line ->> 'kind' in ('steps', 'tool_calls') loop
    r := holdfast.append_event(r, 'budget.changed', jsonb_build_object('scope', 'run', 'budget', l ->> 'kind',
      'from', case l ->> 'kind' when 'steps' then r.steps_max else r.tool_calls_max end,
      'limit_value', (l ->> 'limit')::numeric));
    if l ->> 'kind' = 'steps' then r.steps_max := (l ->> 'limit')::int;
    else r.tool_calls_max := (l ->> 'limit')::int; end if;
  end loop;
  return holdfast.supersede_budget_wait(r);
end $$;

-- Lines that a run brings from its contract.
create function holdfast.add_run_budgets(p_tenant text, p_run text, p_lines jsonb) returns void language sql as $$
  insert into holdfast.budgets (tenant_id, root_run_id, owner, kind, subject, pointer, limit_value)
    select p_tenant, p_run, p_run, l ->> 'kind', l ->> 'subject', l ->> 'pointer', (l ->> 'limit')::numeric
      from jsonb_array_elements(p_lines) with ordinality as t (l, n) order by n
$$;

-- An admin sets all limits of a tenant at once: a line that is left out is counted on and limits nothing. Another window
-- counts anew.
create function holdfast.set_tenant_budget(
  p_tenant text, p_actor text, p_authority text, p_period text, p_lines jsonb, p_endpoint text, p_key text,
  p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  v_today constant date := case p_period when 'day' then (clock_timestamp() at time zone 'UTC')::date end;
  v_known text;
begin
  -- One change after the other; claims never take this lock.
  perform pg_advisory_xact_lock(hashtextextended('holdfast.tenant_budget/' || p_tenant, 0));
  select request_sha256 into v_known from holdfast.tenant_budget_changes
   where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key;
  if found then
    return jsonb_build_object('kind', case when v_known = p_request_sha256 then 'replayed' else 'reused' end);
  end if;
  perform from holdfast.budgets where owner = 'tenant:' || p_tenant order by budget_id for update;
  update holdfast.budgets set
    limit_value = null, updated_at = clock_timestamp(), over = case when period = p_period then over else 0 end,
    used = case when period = p_period then used else 0 end,
    reserved = case when period = p_period then reserved else 0 end,
    era = era + (period <> p_period)::int, period = p_period,
    day = case when period = p_period then day else v_today end
   where owner = 'tenant:' || p_tenant;
  insert into holdfast.budgets as b (tenant_id, owner, kind, subject, pointer, limit_value, period, day)
    select p_tenant, 'tenant:' || p_tenant, l ->> 'kind', l ->> 'subject', l ->> 'pointer', (l ->> 'limit')::numeric,
           p_period, v_today
      from jsonb_array_elements(p_lines) with ordinality as t (l, n) order by n
    on conflict (owner, kind, subject, pointer) do update set limit_value = excluded.limit_value,
      over = greatest(0, b.used + b.reserved - excluded.limit_value);
  insert into holdfast.tenant_budget_changes (tenant_id, endpoint, idempotency_key, request_sha256, actor_id, authority,
                                              period, lines)
    values (p_tenant, p_endpoint, p_key, p_request_sha256, p_actor, p_authority, p_period, p_lines);
  return jsonb_build_object('kind', 'set');
end $$;

-- Runs that wait over their tenant's budget look again. In a transaction after the change: no claim that met the limits of
-- before is still at work then, and the run is locked before its lines, as everywhere.
create function holdfast.release_tenant_waits(p_tenant text) returns void
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
begin
  for r in select * from holdfast.runs where ended_at is null and run_id in (
             select run_id from holdfast.interrupts where tenant_id = p_tenant and kind = 'budget' and state = 'open'
                and scope #>> '{arguments,scope}' = 'tenant') order by run_id for update loop
    r := holdfast.supersede_budget_wait(r);
    perform holdfast.save_run(r);
    perform pg_notify('holdfast_events', r.run_id);
  end loop;
end $$;

grant select on holdfast.budgets, holdfast.budget_reservations, holdfast.tenant_budget_changes to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.set_tenant_budget, holdfast.release_tenant_waits to holdfast_app;
