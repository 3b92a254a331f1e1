import type { Role } from '../domain/roles.js';
import { type Db, jsonb } from './database.js';
import { isoTime } from './reads/row-values.js';

/** Something that somebody asked for and was refused. */
export interface RefusedRequest {
  readonly tenantId: string;
  readonly actorId: string;
  readonly roles: readonly Role[];
  /** Method and path with the names of its parameters. */
  readonly route: string;
  readonly params: Readonly<Record<string, string>>;
  readonly code: string;
  readonly httpStatus: number;
  readonly requestId: string;
}

const RECORD = {
  name: 'ledger/record-refusal',
  text: 'select holdfast.record_refusal($1, $2, $3, $4, $5, $6, $7, $8)',
};

/** Keeps that a request was refused. Again does nothing. */
export async function recordRefusal(db: Db, refused: RefusedRequest): Promise<void> {
  const { tenantId, actorId, roles, route, params, code, httpStatus, requestId } = refused;
  await db.query({
    ...RECORD,
    values: [tenantId, actorId, roles, route, jsonb(params), code, httpStatus, requestId],
  });
}

/** A refusal as it is read. */
export interface RefusalRecord {
  /** The X-Request-Id of the answer. */
  readonly request_id: string;
  readonly actor_id: string;
  readonly roles: readonly Role[];
  readonly route: string;
  readonly params: Readonly<Record<string, string>>;
  readonly code: string;
  readonly http_status: number;
  readonly at: string;
}

const LIST = {
  name: 'reads/refusals',
  text: `
    select request_id, actor_id, roles, route, params, code, http_status, created_at
      from holdfast.refusals
     where tenant_id = $1 and ($2::text is null or request_id < $2) and ($3::text is null or actor_id = $3)
     order by request_id desc
     limit $4`,
};

/** The tenant's refusals before the one `before`, newest first, at most `limit`. */
export async function listRefusals(
  db: Db,
  tenantId: string,
  page: { readonly before: string | null; readonly actorId: string | null; readonly limit: number },
): Promise<RefusalRecord[]> {
  const { rows } = await db.query<Omit<RefusalRecord, 'at'> & { readonly created_at: Date }>({
    ...LIST,
    values: [tenantId, page.before, page.actorId, page.limit],
  });
  return rows.map(({ created_at, ...row }) => ({ ...row, at: isoTime(created_at) }));
}
