import { Argument, type Command } from 'commander';
import { type CommandGroup, commandOf } from '../command.js';
import { writeTo } from '../io.js';

/** The hidden command that the shells ask: `holdfast __complete <words…>`, the last word being the one that is typed. */
export const COMPLETE = '__complete';

/** `holdfast completion`. */
export const completionGroup: CommandGroup = (cli) =>
  commandOf(cli, {
    name: 'completion',
    summary: 'Print the completion script of a shell',
    description: 'The shell then asks this program for words; nothing is asked of the API.',
    args: [new Argument('<shell>', 'bash, zsh or fish').choices(Object.keys(SCRIPTS))],
    examples: [
      'completion bash >> ~/.bashrc',
      'completion zsh > "${fpath[1]}/_holdfast"',
      'completion fish > ~/.config/fish/completions/holdfast.fish',
    ],
    async run({ io }, [shell]) {
      await writeTo(io.stdout, SCRIPTS[shell as keyof typeof SCRIPTS]);
    },
  });

const SCRIPTS = {
  bash: `_holdfast() {
  local IFS=$'\\n'
  COMPREPLY=($(holdfast ${COMPLETE} -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _holdfast holdfast
`,
  zsh: `#compdef holdfast
_holdfast() {
  local -a found
  found=(\${(f)"$(holdfast ${COMPLETE} -- "\${(@)words[2,CURRENT]}" 2>/dev/null)"})
  compadd -a found || _files
}
compdef _holdfast holdfast
`,
  fish: `function __holdfast_complete
  set -l words (commandline -opc) (commandline -ct)
  holdfast ${COMPLETE} -- $words[2..-1] 2>/dev/null
end
complete -c holdfast -a '(__holdfast_complete)'
`,
} as const;

/** What may stand where the last of `words` stands, from the program alone. Pure. */
export function candidates(program: Command, words: readonly string[]): string[] {
  const typed = words.at(-1) ?? '';
  const before = words.slice(0, -1);
  let command = program;
  for (const word of before) {
    command = command.commands.find((sub) => sub.name() === word || sub.aliases().includes(word)) ?? command;
  }
  const options = [...command.options, ...program.options].filter(({ hidden }) => !hidden);
  const last = before.at(-1) ?? '';
  const open = options.find(({ short, long }) => last !== '' && [short, long].includes(last));
  const args = command.registeredArguments.flatMap(({ argChoices }) => argChoices ?? []);
  const subs = command.commands.map((sub) => sub.name()).filter((name) => name !== COMPLETE);
  const fitting =
    open?.required === true
      ? (open.argChoices ?? [])
      : typed.startsWith('-')
        ? options.flatMap(({ long }) => (long === undefined ? [] : [long]))
        : [...subs, ...args];
  return [...new Set(fitting)].filter((word) => word.startsWith(typed)).sort();
}
