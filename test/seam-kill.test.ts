import { killedWorkers } from './support/seam-kill.js';

killedWorkers('normal');
