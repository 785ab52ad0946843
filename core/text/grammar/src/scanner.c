/* Where an instruction was left half-typed: the next line begins another one, ENTRY or HloModule, or the text ends.
 *
 * Inside balanced groups nearly every token is allowed, so that one open bracket would swallow the rest of the file.
 * This scanner then gives a token without characters, which ends the group (node `unfinished`).
 */

#include "tree_sitter/parser.h"

enum { UNFINISHED, ERROR_SENTINEL };

static bool is_blank(int32_t c) { return c == ' ' || c == '\t'; }

static bool is_lower(int32_t c) { return c >= 'a' && c <= 'z'; }

static bool is_digit(int32_t c) { return c >= '0' && c <= '9'; }

static bool is_word_start(int32_t c) { return is_lower(c) || (c >= 'A' && c <= 'Z') || c == '_'; }

static bool is_word(int32_t c) { return is_word_start(c) || is_digit(c) || c == '.' || c == '-'; }

static bool skip_blanks(TSLexer *lexer) {
    bool any = false;
    while (is_blank(lexer->lookahead)) {
        lexer->advance(lexer, false);
        any = true;
    }
    return any;
}

enum { ORDINARY, ROOT, ENTRY, MODULE };

/* Reads a word and says which keyword it is. */
static int read_word(TSLexer *lexer) {
    static const char *const keywords[] = {"", "ROOT", "ENTRY", "HloModule"};
    bool possible[] = {false, true, true, true};
    unsigned length = 0;
    for (; is_word(lexer->lookahead); length++) {
        for (int i = ROOT; i <= MODULE; i++) {
            possible[i] = possible[i] && keywords[i][length] != '\0' && keywords[i][length] == lexer->lookahead;
        }
        lexer->advance(lexer, false);
    }
    for (int i = ROOT; i <= MODULE; i++) {
        if (possible[i] && keywords[i][length] == '\0') return i;
    }
    return ORDINARY;
}

/* Whether an instruction or a module part begins here; reads ahead freely, the token's end is already marked. */
static bool begins_item(TSLexer *lexer) {
    bool percent = false;
    if (lexer->lookahead != '%') {
        if (!is_word_start(lexer->lookahead)) return false;
        int keyword = read_word(lexer);
        bool blank = skip_blanks(lexer);
        if (keyword == ENTRY || keyword == MODULE) return blank;
        if (keyword == ROOT) {
            if (!blank) return false;
            if (lexer->lookahead == '%') percent = true;
            else if (!is_word_start(lexer->lookahead)) return false;
            else {
                read_word(lexer);
                if (!skip_blanks(lexer)) return false;
            }
        } else if (!blank) {
            return false;
        }
    } else {
        percent = true;
    }
    if (percent) {
        lexer->advance(lexer, false);
        read_word(lexer);
        skip_blanks(lexer);
    }
    if (lexer->lookahead != '=') return false;
    lexer->advance(lexer, false);
    if (!skip_blanks(lexer) && !percent) return false;
    if (lexer->lookahead == '(') return true;
    if (!is_lower(lexer->lookahead)) return false;
    while (is_lower(lexer->lookahead) || is_digit(lexer->lookahead) || lexer->lookahead == '-') {
        lexer->advance(lexer, false);
    }
    return lexer->lookahead == '[' || lexer->lookahead == '(';
}

void *tree_sitter_hlo_external_scanner_create(void) { return 0; }

void tree_sitter_hlo_external_scanner_destroy(void *payload) { (void)payload; }

unsigned tree_sitter_hlo_external_scanner_serialize(void *payload, char *buffer) {
    (void)payload;
    (void)buffer;
    return 0;
}

void tree_sitter_hlo_external_scanner_deserialize(void *payload, const char *buffer, unsigned length) {
    (void)payload;
    (void)buffer;
    (void)length;
}

bool tree_sitter_hlo_external_scanner_scan(void *payload, TSLexer *lexer, const bool *valid) {
    (void)payload;
    if (valid[ERROR_SENTINEL] || !valid[UNFINISHED]) return false;
    bool newline = false;
    lexer->mark_end(lexer);
    for (;;) {
        int32_t c = lexer->lookahead;
        if (c == '\n' || c == '\r') newline = true;
        else if (!is_blank(c)) break;
        lexer->advance(lexer, true);
    }
    lexer->result_symbol = UNFINISHED;
    if (lexer->eof(lexer)) return true;
    return newline && begins_item(lexer);
}
