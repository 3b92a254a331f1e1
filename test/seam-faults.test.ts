import { cutAttempts } from './support/seam-faults.js';

cutAttempts('normal');
