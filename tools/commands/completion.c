/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo completion SHELL`: writes the completions of bash, zsh and fish from the
 * tables that the command itself uses.  For `make`.
 *
 * The name of an argument in the help tells the kind of word: see struct cu_command.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "shim/base/options.h"
#include "tools/common/table.h"

enum kind { NOTHING, PID, ID, FILES, DIRS, COLUMNS, COMMAND, SUBCOMMAND, WORDS, NAMES };

static enum kind kind_of(const char *argument)
{
	if (!argument || !*argument)
		return NOTHING;
	if (strstr(argument, "CMD"))
		return COMMAND;
	if (!strncmp(argument, "PID", 3) || !strncmp(argument, "[PID", 4))
		return PID;
	if (!strncmp(argument, "ID", 2))
		return ID;
	if (!strncmp(argument, "COL", 3))
		return COLUMNS;
	if (!strncmp(argument, "DIR", 3))
		return DIRS;
	if (strstr(argument, "FILE"))
		return FILES;
	if (strstr(argument, "SUBCOMMAND"))
		return SUBCOMMAND;
	if (!strcmp(argument, "[NAME...]"))
		return NAMES;
	return strchr(argument, '|') ? WORDS : NOTHING;
}

/* Prints @text with each @from replaced by @to. */
static void put_words(const char *text, char from, const char *to)
{
	for (; *text; text++)
		if (*text == from)
			fputs(to, stdout);
		else
			putchar(*text);
}

static void put_columns(const struct cu_command *command, const char *between)
{
	for (const struct cu_column *c = command->columns; c && c->name; c++)
		printf("%s%s", c == command->columns ? "" : between, c->name);
}

static void put_option_names(void)
{
	for (size_t i = 0; i < cl_option_rows_n; i++)
		printf("%s%s", i ? " " : "", cl_option_rows[i].name);
}

#define EACH_COMMAND(c)                                                    \
	for (const struct cu_command *const *c = cu_commands; *c; c++)     \
		if (!(*c)->hidden)
#define EACH_OPTION(o, command)                                            \
	for (const struct cu_option *o = (command)->options; o && o->name; o++) \
		if (o->help)

/* ------------------------------------------------------------------------ bash */
static void bash_values(const struct cu_command *command, const char *argument)
{
	switch (kind_of(argument)) {
	case NOTHING:
		fputs("none", stdout);
		break;
	case PID:
		fputs("pid", stdout);
		break;
	case ID:
		fputs("id", stdout);
		break;
	case FILES:
		fputs("file", stdout);
		break;
	case DIRS:
		fputs("dir", stdout);
		break;
	case COMMAND:
		fputs("command", stdout);
		break;
	case SUBCOMMAND:
		fputs("subcommand", stdout);
		break;
	case COLUMNS:
		fputs("'columns ", stdout);
		put_columns(command, " ");
		putchar('\'');
		break;
	case WORDS:
		fputs("'words ", stdout);
		put_words(argument, '|', " ");
		putchar('\'');
		break;
	case NAMES:
		fputs("'words ", stdout);
		put_option_names();
		putchar('\'');
		break;
	}
}

static void bash(void)
{
	fputs("# bash completion of culimbo. Made by culimbo completion: change the tables in tools/.\n"
	      "# shellcheck shell=bash\n"
	      "_culimbo() {\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} at=1 sub= option= value= kind= words= prefix=\n"
	      "\tlocal subs='",
	      stdout);
	EACH_COMMAND(c)
		printf("%s ", (*c)->name);
	fputs("help'\n"
	      "\tCOMPREPLY=()\n"
	      "\t((COMP_CWORD > 1)) && sub=${COMP_WORDS[1]}\n"
	      "\t# readline parts words at '=': --option = value\n"
	      "\tif [[ $cur == = ]]; then\n"
	      "\t\tcur= option=${COMP_WORDS[COMP_CWORD - 1]}\n"
	      "\telif [[ ${COMP_WORDS[COMP_CWORD - 1]} == = ]]; then\n"
	      "\t\toption=${COMP_WORDS[COMP_CWORD - 2]}\n"
	      "\telif [[ $cur == --*=* ]]; then\n"
	      "\t\toption=${cur%%=*} prefix=${cur%%=*}= cur=${cur#*=}\n"
	      "\telif [[ ${COMP_WORDS[COMP_CWORD - 1]} == -* ]]; then\n"
	      "\t\toption=${COMP_WORDS[COMP_CWORD - 1]}\n"
	      "\tfi\n"
	      "\tcase $sub in\n"
	      "\t'') words=\"$subs --help --version\" kind=words ;;\n"
	      "\thelp) words=$subs kind=words ;;\n",
	      stdout);
	EACH_COMMAND(c) {
		printf("\t%s)\n\t\tcase $option in\n", (*c)->name);
		EACH_OPTION(o, *c) {
			if (!o->argument)
				continue;
			if (o->value < 128)
				printf("\t\t-%c | ", o->value);
			else
				fputs("\t\t", stdout);
			printf("--%s) value=", o->name);
			bash_values(*c, o->argument);
			fputs(" ;;\n", stdout);
		}
		fputs("\t\tesac\n\t\twords='", stdout);
		EACH_OPTION(o, *c) {
			printf("--%s%s ", o->name, o->argument ? "=" : "");
			if (o->value < 128)
				printf("-%c ", o->value);
		}
		fputs("--help -h' kind=", stdout);
		bash_values(*c, (*c)->arguments);
		fputs(" ;;\n", stdout);
	}
	fputs("\tesac\n"
	      "\tif [[ $value ]]; then\n"
	      "\t\tkind=${value%% *} words=${value#* }\n"
	      "\telif [[ $sub == run ]]; then\n"
	      "\t\t# from the first that is no option on, it is CMD and its own\n"
	      "\t\tat=2\n"
	      "\t\twhile [[ ${COMP_WORDS[at]} == -?* && ${COMP_WORDS[at]} != -- && $at -lt $COMP_CWORD ]]; do ((at++)); done\n"
	      "\t\t[[ ${COMP_WORDS[at]} == -- && $at -lt $COMP_CWORD ]] && ((at++))\n"
	      "\t\tif ((at < COMP_CWORD)); then\n"
	      "\t\t\tif declare -F _command_offset > /dev/null; then\n"
	      "\t\t\t\t_command_offset \"$at\"\n"
	      "\t\t\telse\n"
	      "\t\t\t\tcompopt -o default 2> /dev/null\n"
	      "\t\t\tfi\n"
	      "\t\t\treturn\n"
	      "\t\tfi\n"
	      "\tfi\n"
	      "\tif [[ ! $value && $cur == -* ]]; then\n"
	      "\t\tkind=words\n"
	      "\t\tcompopt -o nospace 2> /dev/null\n"
	      "\tfi\n"
	      "\tcase $kind in\n"
	      "\tpid) words=$(culimbo ps --raw --noheadings -o PID 2> /dev/null) ;;\n"
	      "\tid) words=$(culimbo ps --raw --noheadings -o PID 2> /dev/null; culimbo blocks --raw --noheadings -o ADDRESS 2> /dev/null | head -n 100) ;;\n"
	      "\tcommand) mapfile -t COMPREPLY < <(compgen -c -- \"$cur\"); return ;;\n"
	      "\tfile) compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return ;;\n"
	      "\tdir) compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"); return ;;\n"
	      "\tsubcommand) words=$subs ;;\n"
	      "\tcolumns)\n"
	      "\t\t# a list: what stands before the last comma stays\n"
	      "\t\tcompopt -o nospace 2> /dev/null\n"
	      "\t\tcase $cur in\n"
	      "\t\t*,*) prefix=$prefix${cur%,*}, cur=${cur##*,} ;;\n"
	      "\t\t+*) prefix=$prefix+ cur=${cur#+} ;;\n"
	      "\t\tesac\n"
	      "\t\tcur=${cur^^}\n"
	      "\t\t;;\n"
	      "\twords) ;;\n"
	      "\t*) return ;;\n"
	      "\tesac\n"
	      "\tmapfile -t COMPREPLY < <(compgen -P \"$prefix\" -W \"$words\" -- \"$cur\")\n"
	      "\t# an option is whole but for its value\n"
	      "\tif [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == --* && ${COMPREPLY[0]} != *= && $kind == words ]]; then\n"
	      "\t\tcompopt +o nospace 2> /dev/null\n"
	      "\tfi\n"
	      "}\n"
	      "complete -F _culimbo culimbo\n",
	      stdout);
}

/* ------------------------------------------------------------------------- zsh */
/* Prints @text for single quotes within an _arguments specification. */
static void zsh_text(const char *text)
{
	for (; *text; text++)
		if (*text == '\'')
			fputs("'\\''", stdout);
		else if (strchr("[]:\\", *text))
			printf("\\%c", *text);
		else
			putchar(*text);
}

static void zsh_action(const struct cu_command *command, const char *argument)
{
	switch (kind_of(argument)) {
	case PID:
		fputs("_culimbo_pids", stdout);
		break;
	case ID:
		fputs("_culimbo_ids", stdout);
		break;
	case FILES:
		fputs("_files", stdout);
		break;
	case DIRS:
		fputs("_files -/", stdout);
		break;
	case COLUMNS:
		fputs(" _culimbo_columns ", stdout); /* the blank keeps compadd's options away */
		put_columns(command, " ");
		break;
	case WORDS:
		putchar('(');
		put_words(argument, '|', " ");
		putchar(')');
		break;
	case NAMES:
		putchar('(');
		put_option_names();
		putchar(')');
		break;
	case COMMAND:
		fputs("_normal", stdout);
		break;
	default:
		putchar(' ');
	}
}

static void zsh(void)
{
	fputs("#compdef culimbo\n"
	      "# zsh completion of culimbo. Made by culimbo completion: change the tables in tools/.\n"
	      "_culimbo_pids() {\n"
	      "\tlocal -a pids\n"
	      "\tpids=(${(f)\"$(culimbo ps --raw --noheadings -o PID 2> /dev/null)\"})\n"
	      "\tcompadd -- $pids\n"
	      "}\n"
	      "_culimbo_ids() {\n"
	      "\tlocal -a ids\n"
	      "\tids=(${(f)\"$(culimbo blocks --raw --noheadings -o ID 2> /dev/null | head -n 100)\"})\n"
	      "\t_culimbo_pids\n"
	      "\tcompadd -- $ids\n"
	      "}\n"
	      "_culimbo_columns() {\n"
	      "\tcompset -P '+'\n"
	      "\t_values -s , column \"$@\"\n"
	      "}\n"
	      "_culimbo() {\n"
	      "\tlocal -a subcommands\n"
	      "\tsubcommands=(\n",
	      stdout);
	EACH_COMMAND(c) {
		printf("\t\t'%s:", (*c)->name);
		zsh_text((*c)->summary);
		fputs("'\n", stdout);
	}
	fputs("\t\t'help:show the help of a subcommand'\n"
	      "\t)\n"
	      "\tif ((CURRENT == 2)); then\n"
	      "\t\t_describe subcommand subcommands\n"
	      "\t\t_arguments '(-h --help)'{-h,--help}'[show the help]' '(-V --version)'{-V,--version}'[show the version]'\n"
	      "\t\treturn\n"
	      "\tfi\n"
	      "\tshift words\n"
	      "\t((CURRENT--))\n"
	      "\tcase $words[1] in\n"
	      "\thelp) _describe subcommand subcommands ;;\n",
	      stdout);
	EACH_COMMAND(c) {
		printf("\t%s)\n\t\t_arguments -s \\\n", (*c)->name);
		EACH_OPTION(o, *c) {
			const char *equals = o->argument ? "=" : "";

			if (o->value < 128)
				printf("\t\t\t'(-%c --%s)'{-%c%s,--%s%s}'[", o->value, o->name, o->value,
				       o->argument ? "+" : "", o->name, equals);
			else
				printf("\t\t\t'--%s%s[", o->name, equals);
			zsh_text(o->help);
			putchar(']');
			if (o->argument) {
				putchar(':');
				zsh_text(kind_of(o->argument) == WORDS ? "which" : o->argument);
				putchar(':');
				zsh_action(*c, o->argument);
			}
			fputs("' \\\n", stdout);
		}
		fputs("\t\t\t'(-h --help)'{-h,--help}'[show the help]'", stdout);
		if (kind_of((*c)->arguments) == COMMAND)
			fputs(" \\\n\t\t\t'*::command:_normal'", stdout);
		else if (*(*c)->arguments) {
			fputs(" \\\n\t\t\t'*:", stdout);
			zsh_text((*c)->arguments);
			putchar(':');
			zsh_action(*c, (*c)->arguments);
			putchar('\'');
		}
		fputs("\n\t\t;;\n", stdout);
	}
	fputs("\tesac\n"
	      "}\n"
	      "_culimbo \"$@\"\n",
	      stdout);
}

/* ------------------------------------------------------------------------ fish */
static void fish_text(const char *text)
{
	putchar('\'');
	for (; *text; text++)
		if (*text == '\'' || *text == '\\')
			printf("\\%c", *text);
		else
			putchar(*text);
	putchar('\'');
}

static void fish_action(const struct cu_command *command, const char *argument)
{
	switch (kind_of(argument)) {
	case PID:
		fputs(" -x -a '(__culimbo_pids)'", stdout);
		break;
	case ID:
		fputs(" -x -a '(__culimbo_ids)'", stdout);
		break;
	case FILES:
		fputs(" -r -F", stdout);
		break;
	case DIRS:
		fputs(" -x -a '(__fish_complete_directories)'", stdout);
		break;
	case COLUMNS:
		fputs(" -x -a '(__culimbo_columns ", stdout);
		put_columns(command, " ");
		fputs(")'", stdout);
		break;
	case WORDS:
		fputs(" -x -a '", stdout);
		put_words(argument, '|', " ");
		putchar('\'');
		break;
	case NAMES:
		fputs(" -x -a '", stdout);
		put_option_names();
		putchar('\'');
		break;
	case COMMAND:
		fputs(" -x -a '(__fish_complete_subcommand)'", stdout);
		break;
	default:
		fputs(" -x", stdout);
	}
}

static void fish(void)
{
	fputs("# fish completion of culimbo. Made by culimbo completion: change the tables in tools/.\n"
	      "function __culimbo_pids\n"
	      "\tculimbo ps --raw --noheadings -o PID 2>/dev/null\n"
	      "end\n"
	      "function __culimbo_ids\n"
	      "\t__culimbo_pids\n"
	      "\tculimbo blocks --raw --noheadings -o ID 2>/dev/null | head -n 100\n"
	      "end\n"
	      "function __culimbo_columns # (+ stands before the first one)\n"
	      "\tset -l plus ''\n"
	      "\tstring match -qr '^(-o|--output=)?\\+[^,]*$' -- (commandline -ct); and set plus +\n"
	      "\t__fish_append , $plus$argv\n"
	      "end\n"
	      "complete -c culimbo -f\n"
	      "complete -c culimbo -n __fish_use_subcommand -s h -l help -d 'show the help'\n"
	      "complete -c culimbo -n __fish_use_subcommand -s V -l version -d 'show the version'\n",
	      stdout);
	EACH_COMMAND(c) {
		printf("complete -c culimbo -n __fish_use_subcommand -a %s -d ", (*c)->name);
		fish_text((*c)->summary);
		putchar('\n');
	}
	fputs("complete -c culimbo -n __fish_use_subcommand -a help -d 'show the help of a subcommand'\n"
	      "complete -c culimbo -n '__fish_seen_subcommand_from help' -a '",
	      stdout);
	EACH_COMMAND(c)
		printf("%s ", (*c)->name);
	fputs("'\n", stdout);
	EACH_COMMAND(c) {
		char on[64];

		snprintf(on, sizeof(on), "'__fish_seen_subcommand_from %s'", (*c)->name);
		EACH_OPTION(o, *c) {
			printf("complete -c culimbo -n %s", on);
			if (o->value < 128)
				printf(" -s %c", o->value);
			printf(" -l %s", o->name);
			if (o->argument)
				fish_action(*c, o->argument);
			fputs(" -d ", stdout);
			fish_text(o->help);
			putchar('\n');
		}
		printf("complete -c culimbo -n %s -s h -l help -d 'show the help'\n", on);
		if (kind_of((*c)->arguments) != NOTHING) {
			printf("complete -c culimbo -n %s", on);
			fish_action(*c, (*c)->arguments);
			putchar('\n');
		}
	}
}

static int completion(const struct cu_command *command, int argc, char **argv)
{
	const char *shell;
	int got = cu_getopt(command, argc, argv);

	if (got != CU_DONE)
		return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
	shell = argv[optind];
	if (shell && !strcmp(shell, "bash"))
		bash();
	else if (shell && !strcmp(shell, "zsh"))
		zsh();
	else if (shell && !strcmp(shell, "fish"))
		fish();
	else
		return cu_usage_error(command, "for which shell? bash, zsh or fish");
	return CU_OK;
}

static const struct cu_option options[] = { { .name = NULL } };

const struct cu_command cu_completion = {
	.name = "completion",
	.arguments = "bash|zsh|fish",
	.summary = "make the completions of a shell",
	.help = "Writes the completions for the shell that is named.",
	.options = options,
	.hidden = true,
	.run = completion,
};
