"""A real Emacs with eglot, set up as docs/editors/emacs.md says: opens a stage, hovers, jumps, shows findings."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.lsp.editors import editor_scene

SCRIPT = r"""
(setq eglot-sync-connect 30 eglot-connect-timeout 30 eglot-autoshutdown nil)
(defvar out nil)
(defun say (key value) (push (cons key value) out))
(defun wait (what ready)
  (let ((until (+ (float-time) 30)))
    (while (and (not (funcall ready)) (< (float-time) until)) (accept-process-output nil 0.05))
    (unless (funcall ready) (say 'failed what))))
(find-file (getenv "STAGE"))
(say 'mode (symbol-name major-mode))
(unless (eglot-current-server) (apply #'eglot--connect (eglot--guess-contact)))
(wait "server" (lambda () (eglot-current-server)))
(eglot--maybe-activate-editing-mode)
(goto-char (point-min)) (forward-line 53) (forward-char 46)
(let ((hover (jsonrpc-request (eglot--current-server-or-lose) :textDocument/hover (eglot--TextDocumentPositionParams))))
  (say 'hover (plist-get (plist-get hover :contents) :value)))
(call-interactively #'xref-find-definitions)
(say 'definition (line-number-at-pos))
(goto-char (point-min)) (forward-line 52)
(insert "  %é中𝔸 = oops\n")
(run-hooks 'post-command-hook)
(eglot--signal-textDocument/didChange)
(setq-local flymake-no-changes-timeout 0.1)
(flymake-start)
(defun fault ()
  (seq-find (lambda (one) (string-match-p "expected" (flymake-diagnostic-text one))) (flymake-diagnostics)))
(wait "diagnostics" #'fault)
(let ((one (fault)))
  (say 'diagnostic (line-number-at-pos (flymake-diagnostic-beg one)))
  (say 'message (flymake-diagnostic-text one)))
(set-buffer-modified-p nil)
(with-temp-file (getenv "RESULT") (insert (json-encode out)))
(kill-emacs 0)
"""


def _has_eglot() -> bool:
    emacs = shutil.which("emacs")
    if emacs is None:
        return False
    command = [emacs, "--batch", "-f", "package-initialize", "--eval", "(unless (require 'eglot nil t) (kill-emacs 1))"]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_eglot_hovers_jumps_and_shows_findings(tmp_path: Path, root: Path) -> None:
    if not _has_eglot():
        pytest.skip("no Emacs with eglot here")
    scene = editor_scene(tmp_path, root, "emacs.md", "elisp", "init.el")
    (tmp_path / "script.el").write_text(SCRIPT)
    environment = {**scene.environment, "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    command = ["emacs", "--batch", "-f", "package-initialize"]
    command += ["-l", str(tmp_path / "init.el"), "-l", str(tmp_path / "script.el")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert scene.result.exists(), done.stderr[-3000:]
    out = json.loads(scene.result.read_text())
    assert "failed" not in out, (out, done.stderr[-3000:])
    assert out["mode"] == "hlo-mode"
    assert "f32[7,17,13]" in out["hover"]
    assert out["definition"] == 52
    assert out["diagnostic"] == 53 and "expected" in out["message"]
