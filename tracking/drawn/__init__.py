"""Pictures in SVG, one file each, of plain values: for reports, plans and papers."""
