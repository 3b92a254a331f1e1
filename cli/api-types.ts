import type { z } from 'zod';
import type { ProblemView } from '../api/views/common.js';
import type { CommandView, InterruptListView, InterruptView } from '../api/views/desk-views.js';
import type { ReconciliationItemView } from '../api/views/desk-views.js';
import type { JobView } from '../api/views/job-views.js';
import type { RunListView, RunView } from '../api/views/run-views.js';
import type { StoryView } from '../api/views/story-views.js';
import type { EffectListView, RunEventView } from '../api/views/trail-views.js';

/**
 * What the API answers with, as types alone: made from the schemas that docs/openapi.json is made from, and gone when the
 * program runs. The one door from the command line to the API's code.
 */
export type Problem = z.output<typeof ProblemView>;
export type Run = z.output<typeof RunView>;
export type RunSummary = z.output<typeof RunListView>['runs'][number];
export type RunEvent = z.output<typeof RunEventView>;
export type Effect = z.output<typeof EffectListView>['effects'][number];
export type Story = z.output<typeof StoryView>;
export type StoryEntry = Story['entries'][number];
export type Command = z.output<typeof CommandView>;
export type Interrupt = z.output<typeof InterruptView>;
export type InterruptSummary = z.output<typeof InterruptListView>['interrupts'][number];
export type Reconciliation = z.output<typeof ReconciliationItemView>;
export type Job = z.output<typeof JobView>;
