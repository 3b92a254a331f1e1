import { runMain } from '../shared/process/exit.js';
import { runWorkerProcess } from './worker-process.js';

runMain('worker', () => runWorkerProcess({ env: process.env }));
