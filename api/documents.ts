import { createRequire } from 'node:module';
import { dirname } from 'node:path';
import express from 'express';
import type { Express } from 'express';

const SWAGGER_UI = dirname(createRequire(import.meta.url).resolve('swagger-ui-dist/package.json'));

const PAGE = `<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <title>Holdfast API</title>
    <link rel="stylesheet" href="/docs/swagger-ui.css" />
  </head>
  <body>
    <div id="swagger-ui"></div>
    <script src="/docs/swagger-ui-bundle.js"></script>
    <script src="/docs/show.js"></script>
  </body>
</html>
`;
// In a file of its own: the content security policy forbids scripts inside the page.
const SCRIPT = `SwaggerUIBundle({ url: '/openapi.json', dom_id: '#swagger-ui', deepLinking: true });\n`;

/** Adds /openapi.json and /docs, which shows it. Both are the same for everybody and need no ledger. */
export function mountDocuments(app: Express, document: object): void {
  const text = JSON.stringify(document);
  app.get('/openapi.json', (_request, response) => {
    response.type('application/json').send(text);
  });
  app.get('/docs', (_request, response) => {
    response.type('html').send(PAGE);
  });
  app.get('/docs/show.js', (_request, response) => {
    response.type('text/javascript').send(SCRIPT);
  });
  for (const file of ['swagger-ui.css', 'swagger-ui-bundle.js']) {
    app.use(`/docs/${file}`, express.static(`${SWAGGER_UI}/${file}`, { maxAge: '1h', redirect: false }));
  }
}
