package provider

// Parse reads the text of a preset's file.
var Parse = parse
