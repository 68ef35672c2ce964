# SPDX-License-Identifier: Apache-2.0
"""Lines over n, both axes logarithmic, as an SVG: no module needed."""
import math

COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#555555', '#8b0000')
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 460, 80, 270, 50, 60


def escape(text):
    return text.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')


def nice(value, unit):
    if unit == 'ns':
        for size, name in ((1e9, 's'), (1e6, 'ms'), (1e3, 'us')):
            if value >= size:
                return f'{value / size:g} {name}'
    return f'{value:g} {unit}'.strip()


def lines(path, title, series, x_label='n', unit='ns'):
    """series: (name, [(x, y), ...]) each; what is not above 0 is left out."""
    series = [(name, [(x, y) for x, y in points if x > 0 and y > 0]) for name, points in series]
    series = [(name, points) for name, points in series if points]
    if not series:
        return False
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points]
    x_low, x_high = math.log10(min(xs)), math.log10(max(xs))
    if x_high == x_low:
        x_high += 1
    y_low, y_high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    if y_high == y_low:
        y_high += 1
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x, y):
        return (LEFT + (math.log10(x) - x_low) / (x_high - x_low) * (right - LEFT),
                bottom - (math.log10(y) - y_low) / (y_high - y_low) * (bottom - TOP))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="26" font-size="15">{escape(title)}</text>',
           f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">'
           f'{escape(x_label)}</text>']
    for power in range(y_low, y_high + 1):
        _, y = at(10 ** x_low, 10 ** power)
        out.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                   f'{nice(10 ** power, unit)}</text>')
    for x_value in sorted(set(xs)):
        x, _ = at(x_value, 10 ** y_low)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#eee"/>'
                   f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{x_value:,}</text>')
    for i, (name, points) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="6 4"' if i >= len(COLOURS) else ''
        path_points = ' '.join('%.1f,%.1f' % at(x, y) for x, y in sorted(points))
        out.append(f'<polyline points="{path_points}" fill="none" stroke="{colour}" '
                   f'stroke-width="2"{dash}/>')
        for x, y in points:
            out.append('<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>' % (*at(x, y), colour))
        y = TOP + 10 + 20 * i
        out.append(f'<line x1="{right + 14}" x2="{right + 40}" y1="{y}" y2="{y}" '
                   f'stroke="{colour}" stroke-width="2"{dash}/>'
                   f'<text x="{right + 46}" y="{y + 4}">{escape(name)}</text>')
    out.append('</svg>')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('\n'.join(out) + '\n')
    return True
