import * as vscode from "vscode";
import { LanguageClient, LanguageClientOptions, ServerOptions, TransportKind } from "vscode-languageclient/node";

let client: LanguageClient | undefined;

/** Words as a terminal takes them. */
function quoted(word: string): string {
  return /^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replace(/'/g, `'\\''`)}'`;
}

function settings(): vscode.WorkspaceConfiguration {
  return vscode.workspace.getConfiguration("hloscope");
}

function words(): string[] {
  const given = settings().get<string[]>("command") ?? [];
  return given.length > 0 ? given : ["hloscope"];
}

function advice(): Record<string, unknown> {
  const found = settings();
  return {
    advice: found.get("advice"),
    dumpFacts: found.get("dumpFacts"),
    refusedFusionBytes: found.get("refusedFusionBytes"),
    reduceOptions: found.get("reduceOptions"),
    bisectOptions: found.get("bisectOptions"),
    pallasTarget: found.get("pallasTarget"),
  };
}

/** What some commands answer: a command line for a terminal instead of a text. */
interface ForTerminal {
  terminal: string[];
}

function isForTerminal(answer: unknown): answer is ForTerminal {
  return typeof answer === "object" && answer !== null && Array.isArray((answer as ForTerminal).terminal);
}

async function start(): Promise<void> {
  const [command, ...args] = words();
  if (command === undefined) {
    return;
  }
  const server: ServerOptions = { command, args: [...args, "lsp", "--stdio"], transport: TransportKind.stdio };
  const documents = [{ language: "hlo" }];
  if (settings().get<boolean>("python") ?? true) {
    documents.push({ language: "python" });
  }
  const options: LanguageClientOptions = {
    documentSelector: documents,
    initializationOptions: advice(),
    middleware: {
      async executeCommand(name, given, next) {
        const answer: unknown = await next(name, given);
        if (isForTerminal(answer)) {
          const [first, ...rest] = answer.terminal;
          const line = [...(first === "hloscope" ? words() : [first ?? ""]), ...rest].map(quoted).join(" ");
          const terminal = vscode.window.createTerminal("hloscope");
          terminal.show();
          terminal.sendText(line);
        }
        return answer;
      },
    },
  };
  client = new LanguageClient("hloscope", "hloscope", server, options);
  await client.start();
}

async function stop(): Promise<void> {
  const running = client;
  client = undefined;
  await running?.stop();
}

/** A command of the server on what is under the cursor. */
async function here(name: string, withWord: boolean): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  if (editor === undefined) {
    return;
  }
  const uri = client?.code2ProtocolConverter.asUri(editor.document.uri) ?? editor.document.uri.toString();
  const range = editor.document.getWordRangeAtPosition(editor.selection.active);
  const word = range === undefined ? "" : editor.document.getText(range).replace(/^%/, "");
  // Registered by the client from what the server says that it knows.
  await vscode.commands.executeCommand(name, uri, ...(withWord ? [word, 0] : []));
}

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const commands: [string, () => Promise<void>][] = [
    ["hloscope.restart", async () => { await stop(); await start(); }],
    ["hloscope.here.previousStage", () => here("hloscope.previousStage", true)],
    ["hloscope.here.nextStage", () => here("hloscope.nextStage", true)],
    ["hloscope.here.why", () => here("hloscope.why", true)],
    ["hloscope.here.peekDiff", () => here("hloscope.peekDiff", false)],
    ["hloscope.here.dashboard", () => here("hloscope.openDashboard", false)],
    ["hloscope.here.traceKernels", () => here("hloscope.traceKernels", false)],
    ["hloscope.here.interpretKernels", () => here("hloscope.interpretKernels", false)],
  ];
  for (const [name, run] of commands) {
    context.subscriptions.push(vscode.commands.registerCommand(name, run));
  }
  context.subscriptions.push(
    vscode.workspace.onDidChangeConfiguration(async (change) => {
      if (change.affectsConfiguration("hloscope.command") || change.affectsConfiguration("hloscope.python")) {
        await stop();
        await start();
      } else if (change.affectsConfiguration("hloscope")) {
        await client?.sendNotification("workspace/didChangeConfiguration", { settings: { hloscope: advice() } });
      }
    }),
  );
  try {
    await start();
  } catch (error) {
    const line = words().join(" ");
    void vscode.window.showErrorMessage(`hloscope: '${line} lsp' does not start: ${String(error)}`);
  }
}

export async function deactivate(): Promise<void> {
  await stop();
}
