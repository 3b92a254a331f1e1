import { frozenWorkers } from './support/seam-zombie.js';

frozenWorkers('fast');
