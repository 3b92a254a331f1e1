import type { ServedAnswer } from './model-server.js';

const DEFAULT_TEXT = ['Hello', ' world'];

/** The data of each server-sent event of a chat completion. */
export function chatEvents(answer: ServedAnswer): string[] {
  const chunk = (delta: object, finish: string | null = null): string =>
    JSON.stringify({
      id: 'chatcmpl-1',
      object: 'chat.completion.chunk',
      created: 1,
      model: 'served-model',
      choices: [{ index: 0, delta, finish_reason: finish }],
    });
  const events = [chunk({ role: 'assistant', content: '' })];
  for (const piece of answer.reasoning ?? []) events.push(chunk({ reasoning_content: piece }));
  for (const piece of textOf(answer)) events.push(chunk({ content: piece }));
  for (const [index, call] of (answer.toolCalls ?? []).entries()) {
    const begin = { index, id: call.id, type: 'function', function: { name: call.name, arguments: '' } };
    events.push(chunk({ tool_calls: [begin] }));
    for (const piece of call.pieces) {
      events.push(chunk({ tool_calls: [{ index, function: { arguments: piece } }] }));
    }
  }
  events.push(chunk({}, answer.stopReason ?? (answer.toolCalls ? 'tool_calls' : 'stop')));
  const usage = {
    prompt_tokens: 11,
    completion_tokens: 7,
    total_tokens: 18,
    prompt_tokens_details: { cached_tokens: 4 },
    completion_tokens_details: { reasoning_tokens: 2 },
  };
  events.push(JSON.stringify({ id: 'chatcmpl-1', created: 1, model: 'served-model', choices: [], usage }));
  events.push('[DONE]');
  return events;
}

/** The data of each server-sent event of an Anthropic message. */
export function anthropicEvents(answer: ServedAnswer): string[] {
  const message = {
    id: 'msg_1',
    type: 'message',
    role: 'assistant',
    model: 'served-model',
    content: [],
    stop_reason: null,
    stop_sequence: null,
    usage: { input_tokens: 7, cache_read_input_tokens: 4, cache_creation_input_tokens: 0, output_tokens: 1 },
  };
  const events = [JSON.stringify({ type: 'message_start', message })];
  let index = 0;
  const block = (content: object, deltas: object[]): void => {
    events.push(JSON.stringify({ type: 'content_block_start', index, content_block: content }));
    for (const delta of deltas) events.push(JSON.stringify({ type: 'content_block_delta', index, delta }));
    events.push(JSON.stringify({ type: 'content_block_stop', index }));
    index += 1;
  };
  if (answer.reasoning) {
    const deltas: object[] = answer.reasoning.map((thinking) => ({ type: 'thinking_delta', thinking }));
    if (answer.signature !== undefined) deltas.push({ type: 'signature_delta', signature: answer.signature });
    block({ type: 'thinking', thinking: '', signature: '' }, deltas);
  }
  const text = textOf(answer);
  if (text.length > 0) {
    block(
      { type: 'text', text: '' },
      text.map((piece) => ({ type: 'text_delta', text: piece })),
    );
  }
  for (const call of answer.toolCalls ?? []) {
    block(
      { type: 'tool_use', id: call.id, name: call.name, input: {} },
      call.pieces.map((piece) => ({ type: 'input_json_delta', partial_json: piece })),
    );
  }
  const stop = answer.stopReason ?? (answer.toolCalls ? 'tool_use' : 'end_turn');
  const delta = { stop_reason: stop, stop_sequence: null };
  events.push(JSON.stringify({ type: 'message_delta', delta, usage: { output_tokens: 7 } }));
  events.push(JSON.stringify({ type: 'message_stop' }));
  return events;
}

/** The data of each server-sent event of the responses API. */
export function responsesEvents(answer: ServedAnswer): string[] {
  const response = { id: 'resp_1', object: 'response', created_at: 1, model: 'served-model' };
  const events: object[] = [{ type: 'response.created', response }];
  let index = 0;
  const item = (id: string, begun: object, between: object[], done: object): void => {
    events.push({ type: 'response.output_item.added', output_index: index, item: { id, ...begun } });
    events.push(...between.map((event) => ({ ...event, output_index: index, item_id: id })));
    events.push({ type: 'response.output_item.done', output_index: index, item: { id, ...done } });
    index += 1;
  };
  if (answer.reasoning) {
    const encrypted = { type: 'reasoning', encrypted_content: answer.signature ?? null, summary: [] };
    const deltas = answer.reasoning.map((delta) => ({
      type: 'response.reasoning_summary_text.delta',
      summary_index: 0,
      delta,
    }));
    item('rs_1', encrypted, deltas, encrypted);
  }
  const text = textOf(answer);
  if (text.length > 0) {
    const deltas = text.map((delta) => ({ type: 'response.output_text.delta', content_index: 0, delta }));
    const done = {
      type: 'message',
      role: 'assistant',
      status: 'completed',
      content: [{ type: 'output_text', text: text.join(''), annotations: [] }],
    };
    item('msg_1', { ...done, status: 'in_progress', content: [] }, deltas, done);
  }
  for (const call of answer.toolCalls ?? []) {
    const begun = { type: 'function_call', call_id: call.id, name: call.name, arguments: '' };
    const deltas = call.pieces.map((delta) => ({ type: 'response.function_call_arguments.delta', delta }));
    item(`fc_${call.id}`, begun, deltas, { ...begun, arguments: call.pieces.join(''), status: 'completed' });
  }
  const usage = {
    input_tokens: 11,
    input_tokens_details: { cached_tokens: 4 },
    output_tokens: 7,
    output_tokens_details: { reasoning_tokens: 2 },
  };
  events.push({ type: 'response.completed', response: { ...response, usage } });
  return events.map((event, sequence) => JSON.stringify({ ...event, sequence_number: sequence }));
}

function textOf(answer: ServedAnswer): readonly string[] {
  return answer.text ?? (answer.toolCalls ? [] : DEFAULT_TEXT);
}
