/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts for people and for JSON: sizes, times, and what others have chosen.
 *
 * No control byte and no broken UTF-8 passes cu_clean(), whatever the text's origin.
 */
#ifndef CU_TEXT_H
#define CU_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Write into @to of at least 24 bytes: 1.5M, 512B, as util-linux does. */
void cu_bytes_short(char *to, uint64_t bytes);
/* 1.5 MiB */
void cu_bytes_long(char *to, uint64_t bytes);
/* 2m3s, 1.5s, 20ms */
void cu_duration(char *to, uint64_t ns);
/*
 * Copies @from, of @length bytes at most, to @to of @size bytes.  Control bytes, invalid
 * UTF-8, and characters that change the direction of writing become '?'.
 */
void cu_clean(char *to, size_t size, const char *from, size_t length);
/* The same; if @escaped, bytes below a blank stay, since JSON writes them as \u001b. */
void cu_clean_for(char *to, size_t size, const char *from, size_t length, bool escaped);
/* Writes @text, which is clean, to stdout as a JSON string. */
void cu_json_text(const char *text);
/* Returns how many columns of a terminal a clean text takes. */
size_t cu_width(const char *text);

/*
 * Prints @text, which begins in column @at, and ends the line.  A terminal gets it in lines of its
 * width, broken between words; further ones begin in column @further.
 */
void cu_put_line(FILE *to, size_t at, size_t further, const char *text);
/* The same, in lines of @width columns, wherever it goes. */
void cu_put_within(FILE *to, size_t width, size_t at, size_t further, const char *text);

/*
 * Writes @path, which is relative to @folder, to @to as an absolute one without "." and "..".  If @folder is NULL
 * or not absolute, or has no room before @path, @path is written as it is.
 */
void cu_path_join(const char *folder, const char *path, char *to, size_t size);
/* Returns @path relative to the current directory, in @to, if that is shorter; else @path. */
const char *cu_path_from_here(const char *path, char *to, size_t size);

#endif
