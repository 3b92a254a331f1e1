import { cutAttempts } from './support/seam-faults.js';

cutAttempts('fast');
