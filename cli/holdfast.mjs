#!/usr/bin/env node
// The command line is TypeScript like everything else; tsx reads it.
import { register } from 'tsx/esm/api';

register();
await import('./main.ts');
