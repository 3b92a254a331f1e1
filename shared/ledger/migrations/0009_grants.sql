-- The application connects as whoever it likes and acts as this role: it reads tables and calls the functions that
-- run as their owner. It can neither write a table nor change one, so the ledger's rules hold whatever the code does.

do $$
begin
  create role holdfast_app nologin;
exception
  -- Roles belong to the whole server: another database of it may have made this one already.
  when duplicate_object or unique_violation then null;
end $$;

do $$
begin
  execute format('grant holdfast_app to %I', current_user);
end $$;

grant usage on schema holdfast to holdfast_app;
grant select on all tables in schema holdfast to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function
  holdfast.commit_trail, holdfast.take_over, holdfast.resume_point, holdfast.announce,
  holdfast.register_agent, holdfast.admit_run, holdfast.confirm_starts,
  holdfast.claim_model_call, holdfast.commit_model_response, holdfast.append_chunks, holdfast.fail_model_attempt,
  holdfast.claim_effect, holdfast.settle_effect, holdfast.examine_effect, holdfast.close_effect,
  holdfast.begin_query, holdfast.record_query,
  holdfast.sweep_candidates, holdfast.mark_swept, holdfast.runs_with_late_evidence, holdfast.close_orphan
to holdfast_app;
