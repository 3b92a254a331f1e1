import { Argument, Option } from 'commander';
import type { Occurrence, Schedule } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { factsOf, timeOf } from '../output.js';
import { readJson } from '../read-value.js';
import { LIMIT, pathOf } from './shared.js';

const SCHEDULE = new Argument('<schedule>', 'the id of the schedule, sch_…');

const list: CommandSpec = {
  name: 'list',
  summary: 'List schedules',
  options: [LIMIT],
  examples: ['schedules list'],
  async run({ api, out }, _args, { limit }: { readonly limit: number }) {
    await out.many(
      api.pages<Schedule>('/v1/schedules', {}, 'schedules', limit),
      [
        { title: 'schedule', of: (each) => each.schedule_id },
        { title: 'name', of: (each) => each.name },
        { title: 'agent', of: (each) => each.agent },
        { title: 'next', of: (each) => timeOf(each.next_at) },
        { title: 'paused', of: (each) => timeOf(each.paused_at) },
        { title: 'problem', of: (each) => each.sync_problem ?? '' },
      ],
      'There is no schedule.',
    );
  },
};

const show: CommandSpec = {
  name: 'show',
  summary: 'Show a schedule',
  args: [SCHEDULE],
  examples: ['schedules show sch_0190…'],
  async run({ api, out }, [id]) {
    await out.one(await api.get<Schedule>(pathOf('schedules', id)), factsOfSchedule);
  },
};

const create: CommandSpec = {
  name: 'create',
  summary: 'Make a schedule',
  options: [
    new Option(
      '-d, --definition <json>',
      'name, agent, input, contract, timing and the rest: JSON, @file, or -',
    ).makeOptionMandatory(),
  ],
  examples: ['schedules create -d @nightly.json'],
  changes: 'at_once',
  async run(session, _args, { definition }: { readonly definition: string }) {
    const body = await readJson(session.io, definition, '--definition');
    const sent = await session.api.post<Schedule>('/v1/schedules', body, await session.key());
    await session.out.one(sent.body, factsOfSchedule);
  },
};

function ordering(name: 'pause' | 'resume', summary: string): CommandSpec {
  return {
    name,
    summary,
    args: [SCHEDULE],
    examples: [`schedules ${name} sch_0190…`],
    changes: 'at_once',
    async run(session, [id]) {
      const path = pathOf('schedules', id, `/${name}`);
      const sent = await session.api.post<Schedule>(path, undefined, await session.key());
      await session.out.one(sent.body, factsOfSchedule);
    },
  };
}

const runNow: CommandSpec = {
  name: 'run-now',
  summary: 'Ask for a start outside the plan',
  description: 'Judged under the overlap rule like any planned time, once for its key.',
  args: [SCHEDULE],
  examples: ['schedules run-now sch_0190…'],
  changes: 'at_once',
  async run(session, [id]) {
    const path = pathOf('schedules', id, '/occurrences');
    const sent = await session.api.post<Occurrence>(path, undefined, await session.key());
    await session.out.one(sent.body, (occurrence) =>
      factsOf({
        occurrence: occurrence.occurrence_id,
        state: occurrence.state,
        why: occurrence.reason,
        run: occurrence.run_id,
        message: occurrence.message_id,
        'blocked by': occurrence.blocked_by,
      }),
    );
  },
};

const occurrences: CommandSpec = {
  name: 'occurrences',
  summary: 'List what became of each planned time, newest first',
  args: [SCHEDULE],
  options: [LIMIT],
  examples: ['schedules occurrences sch_0190… -n 10'],
  async run({ api, out }, [id], { limit }: { readonly limit: number }) {
    await out.many(
      api.pages<Occurrence>(pathOf('schedules', id, '/occurrences'), {}, 'occurrences', limit),
      [
        { title: 'planned', of: (each) => timeOf(each.planned_at) },
        { title: 'source', of: (each) => each.source },
        { title: 'state', of: ({ state, reason }) => (reason === null ? state : `${state} (${reason})`) },
        { title: 'run', of: (each) => each.run_id ?? each.message_id ?? '' },
        { title: 'run is', of: (each) => each.run_state ?? '' },
      ],
      'Nothing was due yet.',
    );
  },
};

const backfill: CommandSpec = {
  name: 'backfill',
  summary: 'Ask for the planned times of a stretch of the past',
  args: [SCHEDULE],
  options: [
    new Option('--from <time>', 'from this time on, such as 2026-01-01T00:00:00Z').makeOptionMandatory(),
    new Option('--to <time>', 'up to this one').makeOptionMandatory(),
  ],
  examples: ['schedules backfill sch_0190… --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z'],
  changes: 'asks',
  async run(session, [id], { from, to }: { readonly from: string; readonly to: string }) {
    await session.confirm(`Run what ${id ?? ''} had planned from ${from} to ${to}?`);
    const path = pathOf('schedules', id, '/backfills');
    const sent = await session.api.post<Schedule>(path, { from, to }, await session.key());
    await session.out.one(sent.body, factsOfSchedule);
  },
};

const remove: CommandSpec = {
  name: 'delete',
  summary: 'End a schedule; what it started goes on',
  args: [SCHEDULE],
  examples: ['schedules delete sch_0190… --yes'],
  changes: 'asks',
  async run(session, [id]) {
    await session.confirm(`End ${id ?? ''}, for ever?`);
    const path = pathOf('schedules', id);
    const sent = await session.api.change<Schedule>('DELETE', path, undefined, await session.key());
    await session.out.one(sent.body, factsOfSchedule);
  },
};

const factsOfSchedule = (schedule: Schedule): string[] =>
  factsOf({
    schedule: schedule.schedule_id,
    name: schedule.name,
    agent: schedule.agent,
    thread: schedule.thread_id,
    timing: JSON.stringify(schedule.timing),
    overlap: schedule.overlap,
    'catch up': `${schedule.catch_up_seconds} s`,
    version: schedule.version + (schedule.synced ? '' : ', which Temporal has not heard of yet'),
    problem: schedule.sync_problem,
    next: timeOf(schedule.next_at),
    paused: timeOf(schedule.paused_at),
    deleted: timeOf(schedule.deleted_at),
  });

/** `holdfast schedules`. */
export const schedulesGroup: CommandGroup = (cli) =>
  group(cli, 'schedules', 'Make, pause and read schedules', [
    list,
    show,
    create,
    ordering('pause', 'Pause a schedule: its times pass'),
    ordering('resume', 'Resume a schedule'),
    runNow,
    occurrences,
    backfill,
    remove,
  ]);
