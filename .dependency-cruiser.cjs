/** Who may import whom (README of the layout: docs/architecture.md). What is not listed here is forbidden. */
const only = (name, from, allowed, comment) => ({
  name,
  comment,
  severity: 'error',
  from: { path: from },
  to: { pathNot: allowed },
});
const npm = (...names) => names.map((name) => `^node_modules/(${name})(/|$)`);

module.exports = {
  forbidden: [
    { name: 'no-circular', severity: 'error', from: {}, to: { circular: true } },
    only(
      'domain-is-pure',
      '^shared/domain/',
      ['^shared/domain/', ...npm('zod', 'canonicalize')],
      'shared/domain is pure: it imports itself, zod and canonicalize.',
    ),
    only(
      'ledger-knows-postgres',
      '^shared/ledger/',
      [
        '^shared/(ledger|domain)/',
        '^[a-z_/]+$',
        '^node-pg-migrate$',
        ...npm('pg', '@types/pg', 'uuidv7', 'node-pg-migrate', 'zod', '@types/node'),
      ],
      'The ledger knows Postgres and shared/domain, nothing above it.',
    ),
    only(
      'schema-checks-values',
      '^shared/schema/',
      ['^shared/(schema|domain)/', '^[a-z_/:]+$', ...npm('ajv', 'ajv-formats')],
      'shared/schema checks values against JSON Schemas, for the activities and the API alike.',
    ),
    only(
      'process-is-plumbing',
      '^shared/process/',
      [
        '^shared/process/',
        '^[a-z_/]+$',
        ...npm('zod', 'pino', 'standardwebhooks', '@temporalio/envconfig', '@types/node'),
      ],
      'shared/process is configuration, logging and process plumbing.',
    ),
    only(
      'schema-checks-values',
      '^shared/schema/',
      ['^shared/(schema|domain)/', '^[a-z_/]+$', ...npm('ajv', 'ajv-formats', '@types/node')],
      'shared/schema checks JSON values against JSON Schemas, for activities and the API.',
    ),
    only(
      'workflows-are-replayed',
      '^workflows/',
      ['^workflows/', '^shared/domain/', ...npm('@temporalio/(workflow|common)')],
      'Workflow code is replayed: it imports @temporalio/workflow, @temporalio/common and shared/domain.',
    ),
    {
      name: 'activities-do-not-know-their-callers',
      severity: 'error',
      comment: 'Activities import shared and the libraries of models and tools, never who calls them.',
      from: { path: '^activities/' },
      to: {
        path: [
          '^(workflows|workers|api|cli|console)/',
          ...npm('@temporalio/(client|worker|workflow)', 'express'),
        ],
      },
    },
    {
      name: 'api-performs-no-effect',
      severity: 'error',
      comment: 'The API admits, reads and commands; it performs no effect and writes no run state.',
      from: { path: '^api/' },
      to: { path: ['^(activities|workflows|workers)/', ...npm('@temporalio/(worker|activity|workflow)')] },
    },
    only(
      'cli-speaks-http',
      '^cli/',
      [
        '^cli/',
        '^shared/domain/',
        '^api/views/',
        '^[a-z_/:]+$',
        ...npm(
          'commander',
          '@clack/prompts',
          'cli-table3',
          'picocolors',
          'yocto-spinner',
          'zod',
          '@types/node',
          'tsx',
        ),
      ],
      'The command line is a client of the HTTP API: it knows shared/domain and the types of the API’s answers.',
    ),
    {
      name: 'cli-takes-types-alone-from-the-api',
      severity: 'error',
      from: { path: '^cli/' },
      to: { path: ['^api/', ...npm('zod')], dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'nobody-imports-the-cli',
      severity: 'error',
      from: { pathNot: '^cli/' },
      to: { path: '^cli/' },
    },
    {
      name: 'workers-load-workflows-by-path',
      severity: 'error',
      from: { path: '^workers/' },
      to: { path: '^(workflows|api)/' },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    exclude: { path: '^(test|bench|\\.holdfast)/' },
    tsConfig: { fileName: 'tsconfig.json' },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { extensions: ['.ts', '.js', '.mjs', '.json'] },
  },
};
