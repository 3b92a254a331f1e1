import type { LedgerView } from './ledger-view.js';

/** Sets the clock of a ledger that has `MOVABLE_CLOCK`. */
export async function setClock(world: Pick<LedgerView, 'rows'>, nowMs: number): Promise<void> {
  await world.rows('update test_clock.shift set by_ms = $1', Math.round(nowMs - Date.now()));
}

/** The ledger's functions find this clock before Postgres' own. */
export const MOVABLE_CLOCK = `
  create schema test_clock;
  create table test_clock.shift (by_ms bigint not null);
  insert into test_clock.shift values (0);
  create function test_clock.clock_timestamp() returns timestamptz language sql volatile as
    'select pg_catalog.clock_timestamp() + (select by_ms from test_clock.shift) * interval ''1 millisecond''';
  grant usage on schema test_clock to holdfast_app;
  grant select on test_clock.shift to holdfast_app;
  do $$
  declare
    f regprocedure;
    c record;
  begin
    for f in select oid from pg_proc where pronamespace = 'holdfast'::regnamespace and prosecdef loop
      execute format('alter function %s set search_path = test_clock, pg_catalog, holdfast, pg_temp', f);
    end loop;
    for c in select table_name, column_name from information_schema.columns
              where table_schema = 'holdfast' and column_default in ('now()', 'clock_timestamp()') loop
      execute format('alter table holdfast.%I alter %I set default test_clock.clock_timestamp()',
                     c.table_name, c.column_name);
    end loop;
  end $$`;
