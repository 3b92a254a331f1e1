import { createCipheriv, createDecipheriv, createHash, randomBytes } from 'node:crypto';
import { Webhook } from 'standardwebhooks';

/** A secret as it is stored: unreadable without the key that `keyId` names. */
export interface SealedSecret {
  readonly keyId: string;
  /** Nonce, tag and ciphertext of AES-256-GCM, bound to the endpoint. */
  readonly sealed: Buffer;
}

/** The keys of HOLDFAST_SECRET_KEY: the first seals, any of them opens. */
export interface SecretKeys {
  seal(secret: string, endpointId: string): SealedSecret;
  /** The secret, or null when none of the keys opens it or it was sealed for another endpoint. */
  open(sealed: SealedSecret, endpointId: string): string | null;
}

const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** @param keys 32 bytes each, at least one */
export function createSecretKeys(keys: readonly Buffer[]): SecretKeys {
  const byId = new Map(keys.map((key) => [keyIdOf(key), key]));
  const first = keys[0];
  if (first === undefined) throw new Error('bug: no key to seal with');
  return {
    seal(secret, endpointId) {
      const nonce = randomBytes(NONCE_BYTES);
      const cipher = createCipheriv('aes-256-gcm', first, nonce).setAAD(Buffer.from(endpointId));
      const text = Buffer.concat([cipher.update(secret, 'utf8'), cipher.final()]);
      return { keyId: keyIdOf(first), sealed: Buffer.concat([nonce, cipher.getAuthTag(), text]) };
    },
    open({ keyId, sealed }, endpointId) {
      const key = byId.get(keyId);
      if (key === undefined || sealed.length < NONCE_BYTES + TAG_BYTES) return null;
      const decipher = createDecipheriv('aes-256-gcm', key, sealed.subarray(0, NONCE_BYTES), {
        authTagLength: TAG_BYTES,
      })
        .setAAD(Buffer.from(endpointId))
        .setAuthTag(sealed.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES));
      try {
        const text = decipher.update(sealed.subarray(NONCE_BYTES + TAG_BYTES));
        return Buffer.concat([text, decipher.final()]).toString('utf8');
      } catch {
        // The one thing that `final` says: key, nonce, text and endpoint do not belong together.
        return null;
      }
    },
  };
}

/** Names a key without giving it away. */
function keyIdOf(key: Buffer): string {
  return createHash('sha256').update('holdfast secret key\n').update(key).digest('hex').slice(0, 8);
}

/** A fresh signing secret, as Standard Webhooks writes them: `whsec_` and base64. */
export function newWebhookSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`;
}

/** One message as it is signed and sent. */
export interface WebhookMessage {
  readonly id: string;
  /** The time of this very try: a receiver refuses what is old. */
  readonly at: Date;
  readonly body: string;
}

/** The headers of a message by Standard Webhooks, as its own library signs it. */
export function signWebhook(secret: string, { id, at, body }: WebhookMessage): Record<string, string> {
  return {
    'webhook-id': id,
    'webhook-timestamp': String(Math.floor(at.getTime() / 1000)),
    'webhook-signature': new Webhook(secret).sign(id, at, body),
  };
}
