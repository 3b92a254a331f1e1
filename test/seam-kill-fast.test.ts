import { killedWorkers } from './support/seam-kill.js';

killedWorkers('fast');
